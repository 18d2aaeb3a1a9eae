"""LangChain's chat model for OpenAI against a gateway: `langchain_client.py http://HOST:PORT`."""

import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL = "tiny-chat"


@tool
def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """Weather in a city."""
    return f"sunny in {city}"


def chat(base_url: str, responses: bool) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{base_url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=8,
        max_retries=0,
        timeout=60,
        stream_usage=True,
        use_responses_api=responses,
    )


def talk(model: ChatOpenAI) -> None:
    whole = model.invoke("Hello!")
    assert isinstance(whole, AIMessage) and 1 <= whole.usage_metadata["output_tokens"] <= 8, whole
    streamed = None
    for chunk in model.stream("Hello!"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.text == whole.text, (streamed, whole)
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"], streamed


def call_tools(model: ChatOpenAI) -> None:
    model = model.model_copy(update={"max_tokens": 200})
    bound = model.bind_tools([get_weather], tool_choice="get_weather")
    asked = [HumanMessage("Weather?")]
    whole = bound.invoke(asked)
    (call,) = whole.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Rome", "Oslo"), whole
    streamed = None
    for chunk in bound.stream(asked):
        streamed = chunk if streamed is None else streamed + chunk
    assert [one["args"] for one in streamed.tool_calls] == [call["args"]], streamed
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    after = model.invoke([*asked, whole, result])
    assert after.usage_metadata["output_tokens"] >= 1, after


def main(base_url: str, engine: str) -> None:
    for responses in (False, True):
        model = chat(base_url, responses)
        talk(model)
        if engine != "stub":
            call_tools(model)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
