# Finds ONNX Runtime's headers; the library itself is never linked. In order:
#   1. -DORCHID_ORT_INCLUDE=DIR, or the environment variable of that name
#   2. the system's include path
#   3. the project's release archive of ORCHID_ORT_VERSION
#   4. the distribution's libonnxruntime-dev, unpacked into the cache without root
# 3 and 4 are done by ort_headers.py and cached under $XDG_CACHE_HOME/orchid.

set(ORCHID_ORT_INCLUDE "" CACHE PATH "Directory that holds onnxruntime_cxx_api.h")

function(orchid_find_ort_headers out)
  set(explicit "${ORCHID_ORT_INCLUDE}")
  if(NOT explicit)
    set(explicit "$ENV{ORCHID_ORT_INCLUDE}")
  endif()
  if(explicit)
    if(NOT EXISTS "${explicit}/onnxruntime_cxx_api.h")
      message(FATAL_ERROR "ORCHID_ORT_INCLUDE is ${explicit}, which has no onnxruntime_cxx_api.h")
    endif()
    set(found "${explicit}")
    set(source "ORCHID_ORT_INCLUDE")
  else()
    find_path(ORCHID_ORT_SYSTEM_INCLUDE onnxruntime_cxx_api.h
      PATH_SUFFIXES onnxruntime onnxruntime/core/session)
    if(ORCHID_ORT_SYSTEM_INCLUDE)
      set(found "${ORCHID_ORT_SYSTEM_INCLUDE}")
      set(source "the system's include path")
    else()
      execute_process(
        COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ort_headers.py"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE
        RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR
          "ONNX Runtime's headers were found nowhere (the tries are above). Install the package "
          "libonnxruntime-dev, or unpack a release of ONNX Runtime 1.20 or newer and pass its "
          "include directory with -DORCHID_ORT_INCLUDE=DIR (or the environment variable).")
      endif()
      set(source "the cache")
    endif()
  endif()
  message(STATUS "ONNX Runtime headers: ${found} (from ${source})")
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
