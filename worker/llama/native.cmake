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

# Some files of llama.cpp live off headers that others before them, or an older standard library, include (g++ 14: std::find without <algorithm>).
set(MUSTER_HEADERS "")
foreach(header algorithm array cmath cstdint cstring functional limits map memory numeric set sstream string unordered_map utility vector)
    string(APPEND MUSTER_HEADERS "#include <${header}>\n")
endforeach()

# Compiles several files of a target as one, but for those named.
function(muster_compile_together target alone)
    if(TARGET ${target})
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10
            UNITY_BUILD_CODE_BEFORE_INCLUDE "${MUSTER_HEADERS}")
        get_target_property(sources ${target} SOURCES)
        get_target_property(folder ${target} SOURCE_DIR)
        foreach(source IN LISTS sources)
            get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${folder}")
            set(skip OFF)
            if(source MATCHES "/(${alone})\\.cpp$")
                set(skip ON)
            endif()
            set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ${skip})
        endforeach()
    endif()
endfunction()

function(muster_lean)
    muster_leave_out(llama-common "arg|console|debug|download|hf-cache|imatrix-loader|llguidance|preset|subproc")
    # Most of what these files cost is their headers: several of them are compiled as one. Left alone is what declares a name that another of
    # its target declares differently.
    muster_compile_together(llama-common "json")
    muster_compile_together(llama "llama-kv-cache-dsv4")
    # Files of images are read by Rust (media.rs); nothing here reads videos or writes speech.
    muster_leave_out(mtmd "mtmd-helper|mtmd-helper-gen")
    muster_compile_together(mtmd "clip|mtmd|mtmd-audio|mtmd-image")
    # A library must have a source.
    if(TARGET cpp-httplib)
        file(WRITE ${CMAKE_BINARY_DIR}/muster-empty.cpp "")
        set_target_properties(cpp-httplib PROPERTIES SOURCES ${CMAKE_BINARY_DIR}/muster-empty.cpp)
    endif()
endfunction()

# At the end of the top folder, when all targets are there. An older cmake compiles them, too.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR AND NOT CMAKE_VERSION VERSION_LESS 3.19)
    cmake_language(DEFER CALL muster_lean)
endif()
