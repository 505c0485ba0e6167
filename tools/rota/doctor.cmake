# `rota doctor`, a library so that its tests can judge facts of their own.
add_library(rota_doctor STATIC
  doctor.cpp doctor_child.cpp doctor_gather.cpp doctor_gather_host.cpp doctor_gather_preload.cpp doctor_judge.cpp
  doctor_judge_daemon.cpp doctor_judge_driver.cpp doctor_judge_gpu.cpp doctor_judge_host.cpp doctor_judge_init.cpp
  doctor_judge_preload.cpp doctor_output.cpp doctor_probe.cpp)
target_link_libraries(rota_doctor PUBLIC rota_tool)
target_compile_definitions(rota_doctor PRIVATE ROTA_VERSION="${PROJECT_VERSION}")
