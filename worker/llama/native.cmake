# Included after each project() of llama.cpp (see .cargo/config.toml).

# Kernels for the CPU of this machine. MUSTER_PORTABLE=1 in the environment leaves the choice to GGML_* variables (container
# images).
if(NOT DEFINED ENV{MUSTER_PORTABLE})
    set(GGML_NATIVE ON CACHE BOOL "build for this machine's CPU" FORCE)
endif()

# Our engine neither downloads nor parses a command line of llama.cpp's: https is not wanted (nor looked for).
set(LLAMA_OPENSSL OFF CACHE BOOL "https in llama.cpp's own downloads" FORCE)

# What is compiled into the static libraries and then never linked, a third of the time that `common` takes. Where the shim
# comes to need one of them, the linker names the symbol: take its file from this list.
function(muster_leave_out target pattern)
    if(TARGET ${target})
        get_target_property(sources ${target} SOURCES)
        list(FILTER sources EXCLUDE REGEX "(^|/)(${pattern})\\.(c|cpp)$")
        set_target_properties(${target} PROPERTIES SOURCES "${sources}")
    endif()
endfunction()

function(muster_only_what_is_linked)
    muster_leave_out(llama-common "arg|console|debug|download|hf-cache|imatrix-loader|llguidance|preset|subproc")
    # A library must have a source.
    if(TARGET cpp-httplib)
        file(WRITE ${CMAKE_BINARY_DIR}/muster-empty.cpp "")
        set_target_properties(cpp-httplib PROPERTIES SOURCES ${CMAKE_BINARY_DIR}/muster-empty.cpp)
    endif()
endfunction()

# At the end of the top folder, when all targets are there. An older cmake compiles them, too.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR AND NOT CMAKE_VERSION VERSION_LESS 3.19)
    cmake_language(DEFER CALL muster_only_what_is_linked)
endif()
