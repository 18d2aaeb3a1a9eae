"""The Python client of Lemonade's servers (`lemonade-python-sdk`) against a gateway: `lemonade_client.py http://HOST:PORT`.

It hides errors in its answers (`{"error": ...}`), so each answer is looked at.
"""

import sys
from urllib.parse import urlsplit

from lemonade_sdk import (
    LemonadeClient,
    discover_lemonade_models_with_info,
    find_available_lemonade_port,
)

MESSAGES = [{"role": "user", "content": "Hello!"}]


def discover(client: LemonadeClient) -> None:
    address = urlsplit(client.base_url)
    assert find_available_lemonade_port(host=address.hostname, ports=[address.port]) == address.port
    assert client.health_check()
    found = {model.id for model in discover_lemonade_models_with_info(client.base_url)}
    assert found == {"chat", "embed", "rerank"}, found
    assert [model["id"] for model in client.list_embedding_models()] == ["embed"]
    assert client.has_embeddings("embed") and not client.has_embeddings("chat")
    assert client.has_reranking("rerank") and not client.has_vision("chat")
    assert client.get_model_info("nobody") is None
    assert client.get_model_info("chat").recipe == "llamacpp"


def talk(client: LemonadeClient) -> None:
    loaded = client.load_model("chat", ctx_size=1024)
    assert loaded["status"] == "success", loaded
    answer = client.chat_completion("chat", MESSAGES, max_tokens=4, temperature=0, top_k=1)
    assert answer["choices"][0]["message"]["role"] == "assistant", answer
    assert answer["usage"]["completion_tokens"] == 4, answer
    stats = client.get_stats()
    assert stats["output_tokens"] == 4 and stats["time_to_first_token"] > 0, stats
    assert len(stats["decode_token_times"]) == 4, stats
    assert stats["request_count_total"] == 1, stats


def compare(client: LemonadeClient) -> None:
    answer = client.embeddings(["Hello!", "Goodbye!"], "embed")
    assert [row["index"] for row in answer["data"]] == [0, 1], answer
    assert len(answer["data"][0]["embedding"]) > 1
    scored = client.rerank("capital of France", ["Paris", "an apple"], "rerank")
    assert {row["index"] for row in scored["results"]} == {0, 1}, scored
    assert all("relevance_score" in row for row in scored["results"]), scored


def refuse(client: LemonadeClient) -> None:
    for wrong in (client.load_model("nobody"), client.chat_completion("nobody", MESSAGES)):
        assert "404" in wrong["error"], wrong


def leave(client: LemonadeClient) -> None:
    assert client.unload_model()["status"] == "success"
    health = client.session.get(f"{client.base_url}/api/v1/health", timeout=10).json()
    assert health["all_models_loaded"] == [] and health["model_loaded"] is None, health


def main(host: str) -> None:
    client = LemonadeClient(base_url=host)
    discover(client)
    talk(client)
    compare(client)
    refuse(client)
    leave(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
