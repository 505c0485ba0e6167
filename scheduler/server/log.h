// spdlog, header-only, with the fmt that is installed; formats are fmt's.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>
