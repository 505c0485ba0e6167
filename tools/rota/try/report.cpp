#include "tools/rota/try/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "scheduler/base/uuid.h"

namespace rota::attempt {
namespace {

constexpr const char* kUnknown = "unknown";
constexpr const char* kNone = "-";

std::string in_gib(std::uint64_t bytes) {
  return bytes < (std::uint64_t{1} << 30) ? fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20))
                                          : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// Such a measurement is accurate to about three digits.
std::string in_time(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 119.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

template <typename Value>
std::string or_unknown(const std::optional<Value>& value, std::string (*text)(Value)) {
  return value ? text(*value) : kUnknown;
}

struct Line {
  std::string name;
  std::vector<std::string> cells;
};

// The command as one would type it.
std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](char letter) {
      return std::isalnum(static_cast<unsigned char>(letter)) != 0 || std::strchr("_@%+=:,./-", letter) != nullptr;
    });
    std::string shown = word;
    for (std::size_t at = 0; !plain && (at = shown.find('\'', at)) != std::string::npos; at += 4) {
      shown.replace(at, 1, "'\\''");
    }
    line += (line.empty() ? "" : " ") + (plain ? shown : "'" + shown + "'");
  }
  return line;
}

std::vector<std::string> others(const Report& report) {
  std::set<std::string> all;
  for (const Way& way : report.ways) {
    for (const Way::Round& round : way.rounds) all.insert(round.seen.others.begin(), round.seen.others.end());
  }
  return {all.begin(), all.end()};
}

std::vector<Gpu> gpus(const Report& report) {
  std::vector<Gpu> all;
  for (const Way& way : report.ways) {
    for (const Way::Round& round : way.rounds) {
      for (const Gpu& gpu : round.seen.gpus) {
        if (std::ranges::find(all, gpu.uuid, &Gpu::uuid) == all.end()) all.push_back(gpu);
      }
    }
  }
  return all;
}

bool rotad_saw_some(const Report& report) {
  return std::ranges::any_of(report.ways, [](const Way& way) {
    return std::ranges::any_of(way.rounds, [](const Way::Round& round) { return round.seen.allocated.has_value(); });
  });
}

// Each failure once per way, with the copy's last line of output.
std::vector<std::string> failures(const Report& report) {
  std::vector<std::string> lines;
  for (const Way& way : report.ways) {
    for (std::size_t round = 0; round < way.rounds.size(); ++round) {
      const auto& copies = way.rounds[round].run.copies;
      for (std::size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].code == 0) continue;
        lines.push_back(fmt::format("{}: copy {}{} {}", way.name, i + 1,
                                    way.rounds.size() > 1 ? fmt::format(" of round {}", round + 1) : "",
                                    how_it_failed(copies[i])));
      }
    }
  }
  constexpr std::size_t kMost = 8;
  if (lines.size() > kMost) {
    const std::size_t more = lines.size() - kMost;
    lines.resize(kMost);
    lines.push_back(fmt::format("and {} more", more));
  }
  return lines;
}

// What the reader has to know in addition to the figures.
std::vector<std::string> notes(const Report& report) {
  std::vector<std::string> lines = failures(report);
  if (const auto names = others(report); !names.empty()) {
    lines.push_back(fmt::format("other programs used the GPU at the same time, so these figures mean little: {}",
                                fmt::join(names, ", ")));
  }
  if (!report.rotad_is_here) {
    lines.emplace_back("waits and allocations are unknown: rotad runs in another container and sees other process ids");
  } else if (!rotad_saw_some(report)) {
    lines.emplace_back(
        "rotad saw none of these programs on a GPU: they use none, end too soon to be seen, or rota "
        "cannot be preloaded into them");
  }
  if (!report.nvml_problem.empty()) lines.push_back("GPU memory in use is unknown: " + report.nvml_problem);
  lines.insert(lines.end(), report.remarks.begin(), report.remarks.end());
  if (!report.folder.empty()) lines.push_back(fmt::format("what they printed is in {}", report.folder));
  return lines;
}

nlohmann::json run_json(const Way::Round& round) {
  nlohmann::json copies = nlohmann::json::array();
  for (const CopyEnd& copy : round.run.copies) {
    copies.push_back({{"exit_code", copy.code}, {"signal", copy.signal}, {"seconds", copy.seconds}});
  }
  const Seen& seen = round.seen;
  return {{"seconds", round.run.seconds},
          {"waited_seconds", seen.waited ? nlohmann::json(*seen.waited) : nlohmann::json(nullptr)},
          {"in_use_bytes", seen.in_use ? nlohmann::json(*seen.in_use) : nlohmann::json(nullptr)},
          {"allocated_bytes", seen.allocated ? nlohmann::json(*seen.allocated) : nlohmann::json(nullptr)},
          {"copies", copies}};
}

}  // namespace

Figures figures(const Way& way) {
  Figures all;
  double sum = 0;
  double waited = 0;
  bool all_waits = !way.rounds.empty();
  for (const Way::Round& round : way.rounds) {
    const double seconds = round.run.seconds;
    all.least = sum == 0 ? seconds : std::min(all.least, seconds);
    all.most = std::max(all.most, seconds);
    sum += seconds;
    all.started += static_cast<unsigned>(round.run.copies.size());
    for (const CopyEnd& copy : round.run.copies) all.finished += copy.code == 0 ? 1 : 0;
    all_waits = all_waits && round.seen.waited.has_value();
    waited += round.seen.waited.value_or(0);
    if (round.seen.in_use) all.in_use = std::max(all.in_use.value_or(0), *round.seen.in_use);
    if (round.seen.allocated) all.allocated = std::max(all.allocated.value_or(0), *round.seen.allocated);
  }
  if (way.rounds.empty()) return all;
  all.seconds = sum / static_cast<double>(way.rounds.size());
  if (sum > 0) all.jobs_per_hour = all.finished * 3600.0 / sum;
  if (all_waits && all.started != 0) all.waited = waited / all.started;
  return all;
}

std::string last_line_of(const std::string& path) {
  constexpr std::streamoff kEnd = 4096;
  constexpr std::size_t kMost = 200;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kEnd));
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  if (last.size() > kMost) last.resize(kMost);
  for (char& letter : last) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = ' ';
  }
  last.erase(last.find_last_not_of(' ') + 1);
  return last;
}

std::string how_it_failed(const CopyEnd& copy) {
  const std::string said = last_line_of(copy.output);
  return (copy.signal != 0 ? fmt::format("was ended by signal {} ({})", copy.signal, strsignal(copy.signal))
                           : fmt::format("failed with exit code {}", copy.code)) +
         (said.empty() ? "" : ": " + said);
}

std::string as_table(const Report& report) {
  std::vector<Figures> all;
  for (const Way& way : report.ways) all.push_back(figures(way));
  const double alone = all.empty() ? 0 : all.front().jobs_per_hour;
  const std::size_t rounds = report.ways.empty() ? 0 : report.ways.front().rounds.size();
  std::vector<Line> lines;
  const auto line = [&](const std::string& name, const std::function<std::string(std::size_t)>& cell) {
    Line& added = lines.emplace_back(Line{name, {}});
    for (std::size_t i = 0; i < all.size(); ++i) added.cells.push_back(cell(i));
  };
  line("", [&](std::size_t i) { return report.ways[i].name; });
  line("finished", [&](std::size_t i) { return fmt::format("{} of {}", all[i].finished, all[i].started); });
  line(rounds > 1 ? "time, mean" : "time", [&](std::size_t i) { return in_time(all[i].seconds); });
  if (rounds > 1) {
    line("  least", [&](std::size_t i) { return in_time(all[i].least); });
    line("  most", [&](std::size_t i) { return in_time(all[i].most); });
  }
  line("jobs an hour", [&](std::size_t i) {
    return fmt::format("{:.{}f}", all[i].jobs_per_hour, all[i].jobs_per_hour < 99.5 ? 1 : 0);
  });
  line("  relative to alone", [&](std::size_t i) {
    return alone > 0 ? fmt::format("{:.2f}", all[i].jobs_per_hour / alone) : std::string(kUnknown);
  });
  line("waited, each copy",
       [&](std::size_t i) { return report.ways[i].under_rota ? or_unknown<double>(all[i].waited, in_time) : kNone; });
  line("GPU memory in use", [&](std::size_t i) { return or_unknown<std::uint64_t>(all[i].in_use, in_gib); });
  line("GPU memory allocated", [&](std::size_t i) {
    return report.ways[i].under_rota ? or_unknown<std::uint64_t>(all[i].allocated, in_gib) : kNone;
  });

  std::vector<std::size_t> widths(all.size() + 1);
  for (const Line& each : lines) {
    widths[0] = std::max(widths[0], each.name.size());
    for (std::size_t i = 0; i < each.cells.size(); ++i) widths[i + 1] = std::max(widths[i + 1], each.cells[i].size());
  }
  std::string text = joined(report.command) + "\n";
  if (const auto used = gpus(report); !used.empty()) {
    text +=
        fmt::format("{}{}, ", used.front().name, used.size() > 1 ? fmt::format(" and {} more", used.size() - 1) : "");
  }
  text += fmt::format("{} round{} after a warm-up\n\n", rounds, rounds == 1 ? "" : "s");
  for (const Line& each : lines) {
    text += fmt::format("{:<{}}", each.name, widths[0]);
    for (std::size_t i = 0; i < each.cells.size(); ++i) text += fmt::format("   {:>{}}", each.cells[i], widths[i + 1]);
    text += '\n';
  }
  const std::vector<std::string> more = notes(report);
  if (!more.empty()) text += '\n';
  for (const std::string& note : more) text += note + '\n';
  return text;
}

std::string as_json(const Report& report) {
  nlohmann::json ways = nlohmann::json::array();
  const double alone = report.ways.empty() ? 0 : figures(report.ways.front()).jobs_per_hour;
  for (const Way& way : report.ways) {
    const Figures all = figures(way);
    nlohmann::json rounds = nlohmann::json::array();
    for (const Way::Round& round : way.rounds) rounds.push_back(run_json(round));
    ways.push_back(
        {{"name", way.name},
         {"copies", way.copies},
         {"under_rota", way.under_rota},
         {"finished", all.finished},
         {"started", all.started},
         {"seconds", all.seconds},
         {"jobs_per_hour", all.jobs_per_hour},
         {"relative_to_alone", alone > 0 ? nlohmann::json(all.jobs_per_hour / alone) : nlohmann::json(nullptr)},
         {"rounds", rounds}});
  }
  nlohmann::json used = nlohmann::json::array();
  for (const Gpu& gpu : gpus(report)) used.push_back({{"uuid", uuid_text(gpu.uuid)}, {"name", gpu.name}});
  const nlohmann::json whole = {
      {"command", report.command},
      {"gpus", used},
      {"ways", ways},
      {"others", others(report)},
      {"notes", notes(report)},
      {"output", report.folder.empty() ? nlohmann::json(nullptr) : nlohmann::json(report.folder)}};
  // What a program prints may be any bytes.
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace rota::attempt
