add_library(rota_fake_driver STATIC fake_driver.cpp)
target_link_libraries(rota_fake_driver PUBLIC rota_core_objects)
rota_unit_test(gate_test SOURCES gate/gate_test.cpp gate/contexts_test.cpp gate/streams_test.cpp LIBRARIES rota_fake_driver LABELS threaded)
