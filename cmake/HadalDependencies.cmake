# The libraries hadal builds on, as Debian 12 packages them. `make deps` installs the packages (tools/install-deps).
#
# Debian's CMake packages name shared libraries. With HADAL_STATIC:
# - Abseil, PCRE2 and the image libraries: the static archives that lie beside them,
# - fmt and spdlog have none: their header-only forms,
# - Highway has none either: its headers, and the four functions of its runtime in src/platforms/cpu/highway_runtime.cc.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(PkgConfig REQUIRED)

# hadal_pkg(NAME module): hadal_dep_NAME, the headers and libraries of a pkg-config module.
function(hadal_pkg name module)
  pkg_check_modules(${name} REQUIRED ${module})
  add_library(hadal_dep_${name} INTERFACE)
  target_include_directories(hadal_dep_${name} SYSTEM INTERFACE ${${name}_INCLUDE_DIRS})
  if(HADAL_STATIC)
    target_compile_options(hadal_dep_${name} INTERFACE ${${name}_STATIC_CFLAGS_OTHER})
    target_link_libraries(hadal_dep_${name} INTERFACE ${${name}_STATIC_LIBRARIES})
  else()
    target_link_libraries(hadal_dep_${name} INTERFACE ${${name}_LINK_LIBRARIES})
  endif()
endfunction()
hadal_pkg(pcre2 libpcre2-8)
hadal_pkg(jpeg libjpeg)
hadal_pkg(png libpng)
hadal_pkg(webp libwebp)
hadal_pkg(zlib zlib)
hadal_pkg(webpdemux libwebpdemux)

add_library(hadal_dep_hwy INTERFACE)
add_library(hadal_dep_log INTERFACE)
if(HADAL_STATIC)
  target_link_libraries(hadal_dep_log INTERFACE Threads::Threads)
  target_compile_definitions(hadal_dep_log INTERFACE FMT_HEADER_ONLY SPDLOG_FMT_EXTERNAL)

  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target ${imported})
    get_target_property(shared ${target} IMPORTED_LOCATION_NONE)
    if(target MATCHES "^absl::" AND shared MATCHES "\\.so")
      string(REGEX REPLACE "\\.so.*$" ".a" archive "${shared}")
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE "${archive}")
    endif()
  endforeach()
else()
  pkg_check_modules(hwy REQUIRED libhwy)
  target_link_libraries(hadal_dep_hwy INTERFACE ${hwy_LINK_LIBRARIES})
  target_link_libraries(hadal_dep_log INTERFACE spdlog::spdlog fmt::fmt)
endif()

if(HADAL_TESTS)
  find_package(GTest REQUIRED)
endif()
if(HADAL_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
