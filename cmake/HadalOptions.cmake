# Compiler settings that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(HADAL_CCACHE ccache)
if(HADAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HADAL_CCACHE})
endif()

# -ffp-contract=off: a fused multiply-add is written where it is meant, so that a result does not depend on what the
# compiler chose to contract (docs/numerics.md).
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wno-sign-compare;-ffp-contract=off;-fno-math-errno>")
# The same for kernels.
if(HADAL_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HADAL_CCACHE})
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;--threads=0;-Werror=all-warnings;-Xcompiler=-Wall,-ffp-contract=off>")

if(HADAL_SANITIZE)
  add_compile_options(-fsanitize=${HADAL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${HADAL_SANITIZE})
  # The AVX-512 headers of GCC 12 start "undefined" vectors with themselves; under -O1 with sanitizers the warning about
  # that reaches their callers (GCC bug 105593).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
endif()
if(HADAL_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Asio has a fence, which the sanitizer does not see; its queues are behind mutexes, which it does.
  add_compile_options(-Wno-tsan)
endif()
# Coverage for libFuzzer, which all sources have but those with hot loops (src/CMakeLists.txt).
if(HADAL_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(HADAL_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
  # The driver of a GPU is loaded at run time, which a program without libc.so cannot do.
  if(HADAL_CUDA OR HADAL_HIP)
    add_link_options(-static-libstdc++ -static-libgcc -Wl,--strip-all)
  else()
    add_link_options(-static)
  endif()
endif()
