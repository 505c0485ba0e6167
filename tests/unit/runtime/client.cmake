rota_unit_test(client_test SOURCES client/client_test.cpp LIBRARIES rota_fake_driver LABELS threaded)
