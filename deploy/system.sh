# What the build needs from the system, and whether it is there: one definition for deploy/up and tests/tools/setup, which
# source it (bash). Nothing is run or changed by sourcing.
#
# $SYSTEM_ROOT stands before every folder that is looked at: tests make up roots (tests/tools/test_system.py).

# version_at_least 3.25.1 3.14
version_at_least() {
	[[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# The first version number in a text.
version_in() {
	[[ $1 =~ [0-9]+(\.[0-9]+)+ ]] && printf '%s\n' "${BASH_REMATCH[0]}"
}

# --- libclang ---------------------------------------------------------------------------------------------------------

# libclang as bindgen finds it: the names, the folders and the environment of clang-sys's build/dynamic.rs and common.rs.
# `libclang-cpp.so.14` is another library, whatever the patterns say.
libclangs_in() {
	local file
	for file in "$1"/libclang.so "$1"/libclang-*.so "$1"/libclang.so.* "$1"/libclang-*.so.*; do
		if [[ ${file##*/} != *-cpp.* ]] && is_library "$file"; then
			printf '%s\n' "$file"
		fi
	done
}

# A shared library for 64 bit, by its first bytes.
is_library() {
	[[ -f $1 && $(head -c 5 "$1" 2>/dev/null | od -An -tx1 | tr -d ' ') == 7f454c4602 ]]
}

# Every libclang that bindgen would consider.
libclangs() {
	local folder prefix
	if [[ -n ${LIBCLANG_PATH+set} ]]; then
		# A file, or the folder of one; nothing else is looked at then.
		if libclangs_in "$(dirname -- "$LIBCLANG_PATH")" | grep -qxF -- "$LIBCLANG_PATH"; then
			printf '%s\n' "$LIBCLANG_PATH"
		else
			libclangs_in "$LIBCLANG_PATH"
		fi
		return
	fi
	if prefix=$("${LLVM_CONFIG_PATH:-llvm-config}" --prefix 2>/dev/null) && [[ -n $prefix ]]; then
		for folder in "$prefix"/{bin,lib,lib64}; do
			libclangs_in "$folder"
		done
	fi
	local IFS=:
	for folder in ${LD_LIBRARY_PATH:-} ${LIBRARY_PATH:-}; do
		libclangs_in "$folder"
	done
	unset IFS
	local at=${SYSTEM_ROOT:-}
	for folder in "$at"/usr/local/llvm*/lib* "$at"/usr/local/lib*/*/* "$at"/usr/local/lib*/* "$at"/usr/local/lib* \
		"$at"/usr/lib*/*/* "$at"/usr/lib*/* "$at"/usr/lib*; do
		libclangs_in "$folder"
	done
}

# clang's own headers (stddef.h): they lie beside the library, or a `clang` knows where. Without them bindgen fails at the first
# #include. Debian's libclang1-* come without, its libclang-dev with them.
have_clang_headers() {
	local library=$1 folder
	! command -v clang >/dev/null || return 0
	for folder in "${library%/*}" "$(dirname -- "$(readlink -f -- "$library")")"; do
		! compgen -G "$folder/clang/*/include/stddef.h" >/dev/null || return 0
		! compgen -G "${folder%/*}/lib*/clang/*/include/stddef.h" >/dev/null || return 0
	done
	compgen -G "${SYSTEM_ROOT:-}/usr/lib/llvm-*/lib/clang/*/include/stddef.h" >/dev/null
}

have_libclang() {
	local library
	library=$(libclangs | head -n 1)
	[[ -n $library ]] && have_clang_headers "$library"
}

# --- the other tools --------------------------------------------------------------------------------------------------

have_cmake() {
	# What llama.cpp's CMakeLists.txt asks for.
	version_at_least "$(version_in "$(cmake --version 2>/dev/null)")" 3.14
}

# A C++ compiler with the library's headers for C++17; clang alone, or g++ without libstdc++, is none.
have_cxx() {
	printf '#include <filesystem>\n' | c++ -std=c++17 -E -x c++ - >/dev/null 2>&1 && have_command cc
}

have_command() {
	command -v "$1" >/dev/null
}

# Certificates, without which cargo, pip and npm reach nothing.
have_certificates() {
	[[ -n ${SSL_CERT_FILE:-} ]] && return
	local at=${SYSTEM_ROOT:-} file
	for file in "$at"/etc/ssl/certs/ca-certificates.crt "$at"/etc/pki/tls/certs/ca-bundle.crt "$at"/etc/ssl/ca-bundle.pem "$at"/etc/ssl/cert.pem; do
		[[ ! -s $file ]] || return 0
	done
	return 1
}

# Rust that can build this checkout ($1), also where rustup put it without a new login.
have_rust() {
	if ! have_command cargo && [[ -f ${CARGO_HOME:-${HOME:-}/.cargo}/env ]]; then
		. "${CARGO_HOME:-${HOME:-}/.cargo}/env"
	fi
	version_at_least "$(version_in "$(cargo --version 2>/dev/null)")" "$(rust_wanted "$1")"
}

rust_wanted() {
	sed -n 's/^rust-version = "\(.*\)"/\1/p' "$1/Cargo.toml"
}

have_python() {
	python3 -c 'import ensurepip, venv' 2>/dev/null
}

# --- GPUs -------------------------------------------------------------------------------------------------------------

# What is missing here for an engine that runs on NVIDIA's GPUs, a line each.
cuda_lacks() {
	[[ -e ${SYSTEM_ROOT:-}/proc/driver/nvidia/version ]] || echo 'an NVIDIA driver'
	have_command nvcc || [[ -x ${SYSTEM_ROOT:-}/usr/local/cuda/bin/nvcc ]] || echo nvcc
}

# What is missing here for one that runs on GPUs through Vulkan. ggml's backend wants headers of 1.3.275 (Debian 13, Ubuntu 24.04).
vulkan_lacks() {
	compgen -G "${SYSTEM_ROOT:-}/dev/dri/renderD*" >/dev/null || echo 'a GPU in /dev/dri'
	vulkan_build_lacks
}

# The same for building only: the GPU may be another machine's.
vulkan_build_lacks() {
	local header=${VULKAN_SDK:-${SYSTEM_ROOT:-}/usr}/include/vulkan/vulkan_core.h
	have_command glslc || echo glslc
	local version
	version=$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' "$header" 2>/dev/null)
	((${version:-0} >= 275)) || echo 'Vulkan headers of 1.3.275 or newer (libvulkan-dev)'
}

# choose_backend WANTED: prints cuda, vulkan or cpu; where there is a GPU, why not the others, on stderr. WANTED is one of them, or empty = what this machine can use.
choose_backend() {
	local wanted=$1 backend lacks why=
	case $wanted in
		cpu | cuda | vulkan | rocm | metal)
			echo "$wanted"
			return
			;;
		?*)
			echo "$wanted is no backend: want cpu, cuda, vulkan, rocm or metal" >&2
			return 1
			;;
	esac
	for backend in cuda vulkan; do
		lacks=$("${backend}_lacks")
		if [[ -z $lacks ]]; then
			echo "$backend"
			return
		fi
		why+="; $backend wants ${lacks//$'\n'/, }"
	done
	if compgen -G "${SYSTEM_ROOT:-}/dev/dri/renderD*" >/dev/null || [[ -e ${SYSTEM_ROOT:-}/proc/driver/nvidia/version ]]; then
		echo "there is a GPU, and the engine is built for the CPU only$why" >&2
	fi
	echo cpu
}

# use_backend BACKEND: sets `features` to cargo's arguments for it, and finds its compiler.
use_backend() {
	features=()
	[[ $1 == cpu ]] || features=(--features "muster-llama/$1")
	if [[ $1 == cuda ]] && ! have_command nvcc; then
		PATH=$PATH:/usr/local/cuda/bin
	fi
}

# --- packages ---------------------------------------------------------------------------------------------------------

# Debian's names of what the build lacks.
missing_for_build() {
	have_cmake || echo cmake
	have_command make || echo make
	have_cxx || echo g++
	have_libclang || echo libclang-dev
	have_certificates || echo ca-certificates
}

# Debian's names of what the tests lack besides.
missing_for_tests() {
	have_python || printf '%s\n' python3 python3-venv
	have_command curl || echo curl
	# Advisories come as a git repository.
	have_command git || echo git
	# `kill` as a program; the shell has one of its own.
	[[ -n $(type -P kill) ]] || echo procps
}

# require_rust COMMAND CHECKOUT: distributions' own are too old, so it is the user's to install.
require_rust() {
	have_rust "$2" && return
	echo "Rust $(rust_wanted "$2") or newer is missing$(have_command cargo && echo " (found: $(cargo --version 2>&1 | head -n 1))"). Run this, then $1 again:" >&2
	echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y" >&2
	return 1
}

# require COMMAND MISSING_FUNCTION…: installs what these functions name, as root by apt; else says the one line that must be run
# before COMMAND.
require() {
	local command=$1 packages
	shift
	packages=$(missing_of "$@")
	[[ -n $packages ]] || return 0
	local update='apt-get update' install="apt-get install -y --no-install-recommends $packages"
	if ! have_command apt-get; then
		echo "missing (Debian's names): $packages. Install them with your package manager, then run $command again." >&2
		return 1
	fi
	if ! can_install; then
		echo "missing: $packages. Run this, then $command again:" >&2
		echo "  sudo $update && sudo $install" >&2
		return 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	{ $update -qq && $install; } >&2 || return 1
	packages=$(missing_of "$@")
	if [[ -n $packages ]]; then
		echo "this system's packages are too old or broken, these are still missing: $packages" >&2
		return 1
	fi
}

can_install() {
	(($(id -u) == 0)) && have_command apt-get
}

# What the functions name, as one line.
missing_of() {
	local part packages=
	for part; do
		packages+=" $("$part" | tr '\n' ' ')"
	done
	echo $packages
}
