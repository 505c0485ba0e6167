// A judged job, as text for people and as files for programs. The README documents the formats.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "tools/rota/report/judge.h"

namespace rota::report {

struct Report {
  Model model;
  Suppressions suppressions;
  Judgement judgement;
};

enum class Format { kText, kJson, kJunit, kHtml, kGithub };

std::string render(const Report& report, Format format);

// The format with this name for --format, or for this end of a file's name.
std::optional<Format> format_by_name(std::string_view name);
std::optional<Format> format_by_file(std::string_view path);

std::string text_report(const Report& report);
nlohmann::ordered_json json_report(const Report& report);
std::string junit_report(const Report& report);
std::string html_report(const Report& report);
std::string github_report(const Report& report);

// "shared memory of the GPU is full of …": what the last out-of-memory of a process was about; empty: there was none.
std::string_view out_of_memory_text(account::OutOfMemory reason);

}  // namespace rota::report
