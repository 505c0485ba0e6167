#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#include "catch2_cases.h"
#include "tools/rota_test/rota_test.h"

ROTA_TEST_CATCH2_LISTENER
