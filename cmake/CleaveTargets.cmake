# One precompiled header for everything: LibTorch's headers take 10 to 26 s a file without it.
add_library(cleave_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(cleave_pch PUBLIC cleave_torch)
target_compile_options(cleave_pch PRIVATE -Wall -Wextra -Werror)
target_precompile_headers(cleave_pch PRIVATE
  <torch/torch.h> <torch/library.h> <ATen/core/dispatch/Dispatcher.h>)

function(_cleave_common target)
  # The -Wno- ones are false alarms of g++ 12 inside the standard library and LibTorch at -O3.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-maybe-uninitialized;-Wno-restrict;-Wno-array-bounds>)
  target_precompile_headers(${target} REUSE_FROM cleave_pch)
endfunction()

# cleave_library(NAME DEPS...): a static library of every .cc below the calling folder.
function(cleave_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/cleave>)
  target_link_libraries(${name} PUBLIC ${ARGN})
  _cleave_common(${name})
endfunction()

# cleave_executable(NAME SOURCES... DEPS deps...)
function(cleave_executable name)
  cmake_parse_arguments(arg "" "" "DEPS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  _cleave_common(${name})
  # -fPIC as the precompiled header has it, in place of an executable's -fPIE.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()
