rota_unit_test(memory_test SOURCES memory/ledger_test.cpp memory/memory_test.cpp memory/settings_test.cpp
  LIBRARIES rota_fake_driver LABELS threaded)
