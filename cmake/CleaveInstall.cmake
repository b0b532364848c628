# Install, export, and one spelling of includes for both trees: <cleave/cleave.h>, <cleave/core/...>.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(CLEAVE_LAYERS core strategies)  # what is installed
foreach(layer tensor_parallel compat)
  if(TARGET cleave_${layer})
    list(APPEND CLEAVE_LAYERS ${layer})
  endif()
endforeach()

# Build tree: <build>/include/cleave holds links to the sources.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/cleave)
foreach(entry ${CLEAVE_LAYERS} cleave.h)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${entry} ${PROJECT_BINARY_DIR}/include/cleave/${entry} SYMBOLIC)
endforeach()
target_include_directories(cleave INTERFACE
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(cleave INTERFACE cxx_std_20)

# Headers include each other as "core/...": include/cleave is on the path as well (cleave_library()).
install(FILES cleave.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave)
install(DIRECTORY ${CLEAVE_LAYERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cleave FILES_MATCHING PATTERN "*.h")

list(TRANSFORM CLEAVE_LAYERS PREPEND cleave_ OUTPUT_VARIABLE layer_targets)
install(TARGETS cleave ${layer_targets} EXPORT cleaveTargets)
if(TARGET cleave_run)
  install(TARGETS cleave_run EXPORT cleaveTargets)
endif()

# LibTorch's targets are made anew from the installed CleaveTorch.cmake, wherever LibTorch is then.
set(CLEAVE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/cleave)
set(CLEAVE_BUILT_WITH_CUDA OFF)
if(TARGET cleave_torch_cuda)
  set(CLEAVE_BUILT_WITH_CUDA ON)
endif()
install(EXPORT cleaveTargets NAMESPACE cleave:: DESTINATION ${CLEAVE_PACKAGE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/cleaveConfig.cmake.in ${PROJECT_BINARY_DIR}/cleaveConfig.cmake
                              INSTALL_DESTINATION ${CLEAVE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cleaveConfig.cmake ${PROJECT_BINARY_DIR}/cleaveConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/CleaveTorch.cmake DESTINATION ${CLEAVE_PACKAGE_DIR})
