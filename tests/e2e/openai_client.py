"""The official OpenAI client against a gateway: `openai_client.py http://HOST:PORT/v1`."""

import sys

import openai

MODEL = "tiny-chat"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]


def main(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)

    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL

    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0)
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert message.content or getattr(message, "reasoning_content", None), whole
    assert whole.choices[0].finish_reason in ("stop", "length"), whole
    assert 1 <= whole.usage.completion_tokens <= 8, whole

    text, finish, usage = "", None, None
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            text += (getattr(choice.delta, "reasoning_content", None) or "") + (choice.delta.content or "")
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert text == (getattr(message, "reasoning_content", None) or "") + (message.content or ""), (text, message)
    assert finish == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens

    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0)
    assert completion.choices[0].text, completion
    pieces = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == completion.choices[0].text

    try:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.body["message"], error.body
    else:
        raise AssertionError("an unknown model must be refused")
    try:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature="hot")
    except openai.BadRequestError as error:
        assert error.param == "temperature", error.body
    else:
        raise AssertionError("a wrong type must be refused")
    print("ok")


if __name__ == "__main__":
    main(sys.argv[1])
