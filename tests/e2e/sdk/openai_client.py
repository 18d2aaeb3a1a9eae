"""The official OpenAI client against a gateway: `openai_client.py http://HOST:PORT ENGINE`."""

import json
import sys

import openai

MODEL = "tiny-chat"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]


TOOL = {
    "name": "get_weather",
    "description": "Weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def call_tools(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_completion_tokens": 200,
        "temperature": 0,
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "required",
    }
    whole = client.chat.completions.create(**asked)
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "tool_calls", whole
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), whole
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion()
    (again,) = streamed.choices[0].message.tool_calls
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments), streamed
    answered = MESSAGES + [whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = client.chat.completions.create(model=MODEL, messages=answered, max_tokens=4)
    assert after.usage.completion_tokens >= 1, after


def respond(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "instructions": "Be brief.", "input": "Hello!", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(**asked)
    assert whole.object == "response" and whole.status in ("completed", "incomplete"), whole
    assert whole.output and 1 <= whole.usage.output_tokens <= 8, whole
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed", events[-1]
    assert events[-1].response.output_text == whole.output_text
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text, (deltas, whole)


def respond_with_tools(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "input": "Weather?",
        "max_output_tokens": 200,
        "temperature": 0,
        "tools": [{"type": "function", **TOOL}],
        "tool_choice": {"type": "function", "name": "get_weather"},
    }
    whole = client.responses.create(**asked)
    call = next(item for item in whole.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo"), whole
    with client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    again = next(item for item in streamed.output if item.type == "function_call")
    assert again.arguments == call.arguments, streamed
    turns = [
        {"role": "user", "content": "Weather?"},
        *whole.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    after = client.responses.create(model=MODEL, input=turns, max_output_tokens=4)
    assert after.usage.output_tokens >= 1, after


def shape(client: openai.OpenAI) -> None:
    schema = {"name": "weather", "schema": TOOL["parameters"], "strict": True}
    shaped = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": schema},
        extra_body={"enable_thinking": False},
    )
    assert json.loads(shaped.choices[0].message.content)["city"] in ("Rome", "Oslo"), shaped
    likely = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2)
    entries = likely.choices[0].logprobs.content
    assert entries and all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries), likely
    several = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, n=2, seed=7)
    assert [choice.index for choice in several.choices] == [0, 1], several


def embed(client: openai.OpenAI) -> None:
    # The client asks for base64 unless told otherwise.
    encoded = client.embeddings.create(model="tiny-embed", input=["one", "two"])
    plain = client.embeddings.create(model="tiny-embed", input=["one", "two"], encoding_format="float")
    assert len(encoded.data) == 2 and encoded.usage.prompt_tokens > 0, encoded
    for one, other in zip(encoded.data, plain.data, strict=True):
        assert all(abs(a - b) < 1e-5 for a, b in zip(one.embedding, other.embedding, strict=True))
    short = client.embeddings.create(model="tiny-embed", input="one", dimensions=8)
    assert len(short.data[0].embedding) == 8, short


def main(base_url: str, engine: str) -> None:
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=60)

    assert MODEL in [model.id for model in client.models.list()]
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
    respond(client)
    if engine != "stub":
        call_tools(client)
        respond_with_tools(client)
        shape(client)
        embed(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
