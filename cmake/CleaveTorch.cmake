# Finds LibTorch without its own CMake package (which drags in CUDA set-up that a CPU build does not
# need). Looks in CLEAVE_TORCH_ROOT, then in ${PROJECT_SOURCE_DIR}/.venv, then asks python3.
if(NOT CLEAVE_TORCH_ROOT)
  file(GLOB _venv_torch ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(_venv_torch)
    set(CLEAVE_TORCH_ROOT ${_venv_torch})
  else()
    execute_process(
      COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE CLEAVE_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
set(_torch_version_file "${CLEAVE_TORCH_ROOT}/include/torch/csrc/api/include/torch/version.h")
if(EXISTS "${CLEAVE_TORCH_ROOT}/include/torch/headeronly/version.h")
  set(_torch_version_file "${CLEAVE_TORCH_ROOT}/include/torch/headeronly/version.h")
endif()
if(NOT EXISTS "${_torch_version_file}")
  message(FATAL_ERROR "cleave: no LibTorch found (looked in '${CLEAVE_TORCH_ROOT}'). Run `make setup`, "
                      "or give -DCLEAVE_TORCH_ROOT=<folder with include/ and lib/>.")
endif()
file(STRINGS ${_torch_version_file} _torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" CLEAVE_TORCH_VERSION
       "${_torch_version}")
if(CLEAVE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "cleave: LibTorch ${CLEAVE_TORCH_VERSION} in ${CLEAVE_TORCH_ROOT}; 2.11 or newer is needed.")
endif()
if(NOT TARGET cleave_torch)
  message(STATUS "cleave: LibTorch ${CLEAVE_TORCH_VERSION} in ${CLEAVE_TORCH_ROOT}")
  add_library(cleave_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(cleave_torch SYSTEM INTERFACE
    ${CLEAVE_TORCH_ROOT}/include ${CLEAVE_TORCH_ROOT}/include/torch/csrc/api/include)
  target_compile_definitions(cleave_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_options(cleave_torch INTERFACE -Wl,--allow-shlib-undefined)
  target_link_libraries(cleave_torch INTERFACE
    -Wl,--no-as-needed ${CLEAVE_TORCH_ROOT}/lib/libtorch_cpu.so -Wl,--as-needed
    ${CLEAVE_TORCH_ROOT}/lib/libc10.so)
endif()

# CUDA: needs the toolkit's headers, and nccl.h with libnccl.so.2 of the wheel.
if(NOT TARGET cleave_torch_cuda AND NOT CLEAVE_CUDA STREQUAL "OFF" AND EXISTS ${CLEAVE_TORCH_ROOT}/lib/libtorch_cuda.so)
  find_package(CUDAToolkit QUIET)
  get_filename_component(_site ${CLEAVE_TORCH_ROOT} DIRECTORY)
  find_path(CLEAVE_NCCL_INCLUDE nccl.h HINTS ${_site}/nvidia/nccl/include NO_DEFAULT_PATH)
  find_library(CLEAVE_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${_site}/nvidia/nccl/lib NO_DEFAULT_PATH)
  if(CUDAToolkit_FOUND AND CLEAVE_NCCL_INCLUDE AND CLEAVE_NCCL_LIBRARY)
    add_library(cleave_torch_cuda INTERFACE IMPORTED GLOBAL)
    target_include_directories(cleave_torch_cuda SYSTEM INTERFACE
      ${CUDAToolkit_INCLUDE_DIRS} ${CLEAVE_NCCL_INCLUDE})
    target_compile_definitions(cleave_torch_cuda INTERFACE USE_C10D_NCCL CLEAVE_WITH_CUDA=1)
    target_link_libraries(cleave_torch_cuda INTERFACE cleave_torch
      -Wl,--no-as-needed ${CLEAVE_TORCH_ROOT}/lib/libtorch_cuda.so -Wl,--as-needed
      ${CLEAVE_TORCH_ROOT}/lib/libc10_cuda.so ${CLEAVE_NCCL_LIBRARY} CUDA::cudart)
  endif()
endif()
if(CLEAVE_CUDA STREQUAL "ON" AND NOT TARGET cleave_torch_cuda)
  message(FATAL_ERROR "cleave: CLEAVE_CUDA=ON, but the CUDA toolkit, a CUDA LibTorch or its NCCL was not found.")
endif()
if(TARGET cleave_torch_cuda)
  message(STATUS "cleave: CUDA toolkit ${CUDAToolkit_VERSION}, NCCL in ${CLEAVE_NCCL_LIBRARY}")
else()
  message(STATUS "cleave: CPU build")
endif()
