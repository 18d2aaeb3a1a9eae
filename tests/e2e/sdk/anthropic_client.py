"""Anthropic's own client against a gateway: `anthropic_client.py http://HOST:PORT`."""

import sys

import anthropic

MODEL = "tiny-chat"
MESSAGES = [{"role": "user", "content": "Hello!"}]
# The client does not know it any more, the API does.
GREEDY = {"temperature": 0}
TOOL = {
    "name": "get_weather",
    "description": "Weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
        "required": ["city"],
    },
}


def text_of(message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def thought_of(message) -> str:
    return "".join(block.thinking for block in message.content if block.type == "thinking")


def talk(client: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": 8, "messages": MESSAGES, "system": "Be brief.", "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    assert whole.role == "assistant" and whole.type == "message", whole
    assert text_of(whole) or thought_of(whole), whole
    assert whole.stop_reason in ("max_tokens", "end_turn"), whole
    assert 1 <= whole.usage.output_tokens <= 8, whole

    with client.messages.stream(**asked) as stream:
        for _ in stream.text_stream:
            pass
        streamed = stream.get_final_message()
    assert (text_of(streamed), thought_of(streamed)) == (text_of(whole), thought_of(whole)), (streamed, whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    told = streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens
    assert told == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, (streamed.usage, whole.usage)


def call_tools(client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": MESSAGES,
        "extra_body": GREEDY,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    whole = client.messages.create(**asked)
    call = next(block for block in whole.content if block.type == "tool_use")
    assert whole.stop_reason == "tool_use", whole
    assert call.name == "get_weather" and call.input["city"] in ("Rome", "Oslo"), whole
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    again = next(block for block in streamed.content if block.type == "tool_use")
    assert (again.name, again.input) == (call.name, call.input), streamed

    answered = MESSAGES + [
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
    ]
    after = client.messages.create(model=MODEL, max_tokens=4, messages=answered, tools=[TOOL])
    assert after.usage.output_tokens >= 1, after


def refuse(client: anthropic.Anthropic) -> None:
    try:
        client.messages.create(model="nobody", max_tokens=4, messages=MESSAGES)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("an unknown model must be refused")
    try:
        client.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES, extra_body={"temperature": "hot"})
    except anthropic.BadRequestError as error:
        assert "temperature" in error.body["error"]["message"], error.body
    else:
        raise AssertionError("a wrong type must be refused")


def main(base_url: str, engine: str) -> None:
    client = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=60)
    talk(client)
    refuse(client)
    if engine != "stub":
        count = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
        assert count.input_tokens > 1, count
        call_tools(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
