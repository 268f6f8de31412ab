# hadal_library(NAME SOURCES ... [DEPS ...]): a static library hadal_NAME whose headers are included from src/.
function(hadal_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(hadal_${name} STATIC ${ARG_SOURCES})
  target_include_directories(hadal_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(hadal_${name} PUBLIC ${ARG_DEPS})
endfunction()

# hadal_test(NAME SOURCES ... [DEPS ...] LABELS unit|golden|invariance|e2e): a GoogleTest program. `make test` finds it
# through build/*/tests.txt; CTest has one entry for it. The targets unit_tests, golden_tests ... build those of a label.
function(hadal_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  list(LENGTH ARG_LABELS labels)
  if(NOT labels EQUAL 1)
    message(FATAL_ERROR "hadal_test(${name}): LABELS takes one of unit, golden, invariance, e2e; got '${ARG_LABELS}'")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE HADAL_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             HADAL_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # The time of a test's own code goes into compiling it, with sanitizers most of all.
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE $<IF:$<BOOL:${HADAL_SANITIZE}>,-O0,-O1>)
  endif()
  if(NOT TARGET ${ARG_LABELS}_tests)
    add_custom_target(${ARG_LABELS}_tests)
  endif()
  add_dependencies(${ARG_LABELS}_tests ${name})
  set_property(GLOBAL APPEND PROPERTY HADAL_TEST_PROGRAMS "${name} ${ARG_LABELS}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
endfunction()

# hadal_fuzzer(NAME SOURCE [DEPS ...]): a libFuzzer program fuzz_NAME with its corpus in tests/fuzz/corpus/NAME. The
# target `fuzzers` builds all of them.
function(hadal_fuzzer name source)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  if(HADAL_FUZZERS)
    add_executable(fuzz_${name} ${source})
    target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(fuzz_${name} PRIVATE ${ARG_DEPS})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers fuzz_${name})
  endif()
endfunction()
