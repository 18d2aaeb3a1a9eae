# Included after each project() of llama.cpp (see .cargo/config.toml): build the kernels for the CPU of this machine.
# MUSTER_PORTABLE=1 in the environment leaves the choice to GGML_* variables (container images).
if(NOT DEFINED ENV{MUSTER_PORTABLE})
    set(GGML_NATIVE ON CACHE BOOL "build for this machine's CPU" FORCE)
endif()
