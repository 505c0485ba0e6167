#include "tools/rota/demo/story.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tools/rota/try/report.h"

namespace rota::demo {
namespace {

using nlohmann::json;

constexpr int kOutOfMemory = 2;  // the program's exit code

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  if (bytes < kGib) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{:.2g} GiB", static_cast<double>(bytes) / static_cast<double>(kGib));
}

std::string time_text(double seconds) {
  return fmt::format("{:.2f} s", seconds);
}

std::uint64_t whole(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// Null for a line that is no JSON object.
json object_of(const std::string& line) {
  const json value = json::parse(line, nullptr, false);
  return value.is_object() ? value : json();
}

bool is_right(const Copy& copy) {
  return copy.end.code == 0 && copy.checked != 0;
}
bool is_out_of_memory(const Copy& copy) {
  return copy.end.code == kOutOfMemory;
}

template <class Property>
unsigned count(const Way& way, Property property) {
  return static_cast<unsigned>(std::ranges::count_if(way.copies, property));
}

std::string result_of(const Copy& copy) {
  if (is_right(copy)) return "right";
  if (is_out_of_memory(copy)) return "out of memory";
  return copy.end.signal != 0 ? fmt::format("signal {}", copy.end.signal) : "failed";
}

std::string both(unsigned copies) {
  return copies == 2 ? "both" : fmt::format("all {}", copies);
}
// Copies that did not finish, for reasons that are not expected.
void add_failures(Story& story, const Way& way, const char* name, bool memory_may_lack) {
  for (std::size_t i = 0; i < way.copies.size(); ++i) {
    const Copy& copy = way.copies[i];
    if (is_right(copy) || (memory_may_lack && is_out_of_memory(copy))) continue;
    story.problems.push_back(fmt::format("{} copy {} {}", name, i + 1, attempt::how_it_failed(copy.end)));
  }
}

void judge_natively(Story& story) {
  const Way& way = story.natively;
  const unsigned right = count(way, is_right);
  const unsigned refused = count(way, is_out_of_memory);
  add_failures(story, way, "natively", story.simulated);
  if (!story.simulated) {
    if (right == story.copies) {
      story.seen.push_back(fmt::format("Natively {} finished within {}: the driver let them run in slices of time.",
                                       both(story.copies), time_text(way.seconds)));
    }
    return;
  }
  if (refused == 0) {
    story.problems.push_back(
        fmt::format("natively {} of {} copies finished, and none was refused memory that they have not got together",
                    right, story.copies));
    return;
  }
  const Copy& first = *std::ranges::find_if(way.copies, is_out_of_memory);
  story.seen.push_back(fmt::format("Natively {} of {} finished. What the GPU had left was not enough for {}: {}.",
                                   right, story.copies, refused == 1 ? "the other one" : "the others", first.said));
}

void judge_under_rota(Story& story) {
  const Way& way = story.under_rota;
  const unsigned right = count(way, is_right);
  add_failures(story, way, "under rota", false);
  if (right == story.copies) {
    std::uint64_t words = 0;
    for (const Copy& copy : way.copies) words += copy.checked;
    const std::string memory = story.simulated ? fmt::format(", with {} on a GPU of {}", size_text(story.bytes * right),
                                                             size_text(story.gpu.total))
                                               : "";
    story.seen.push_back(
        fmt::format("Under rota {} finished within {}{}.", both(story.copies), time_text(way.seconds), memory));
    story.seen.push_back(
        fmt::format("All of their memory held what it must: {:.0f} million words compared, none wrong.",
                    static_cast<double>(words) / 1e6));
  }
  if (!story.rotad_is_here) {
    story.seen.emplace_back("What each waited is unknown: rotad runs in another container.");
    return;
  }
  const unsigned known = count(way, [](const Copy& copy) { return copy.use.has_value(); });
  if (right == story.copies && known != story.copies) {
    story.problems.push_back(
        fmt::format("rotad saw {} of {} copies on the GPU: the others ran without it", known, story.copies));
  }
  if (known == 0) return;
  double waited = 0;
  for (const Copy& copy : way.copies) waited += copy.use ? copy.use->waited : 0;
  if (waited > 0) {
    story.seen.push_back(fmt::format("rotad gave out {} turns{}, and each copy waited {} on average.", way.seen.grants,
                                     story.own_rotad ? "" : " (some perhaps to others)", time_text(waited / known)));
  } else {
    story.seen.emplace_back("None had to wait for another.");
  }
  // On a simulated GPU the reason is always their memory.
  if (!way.seen.sharing.empty() && !story.simulated) {
    story.seen.push_back(fmt::format("`rota status` said: {}.", way.seen.sharing));
  }
}

json copy_json(const Copy& copy, std::size_t number, std::uint64_t bytes) {
  const auto seconds = [&](double attempt::Use::* member) { return copy.use ? json((*copy.use).*member) : json(); };
  return {{"copy", number},
          {"result", result_of(copy)},
          {"exit_code", copy.end.code},
          {"signal", copy.end.signal},
          {"seconds", copy.end.seconds},
          {"waited_seconds", seconds(&attempt::Use::waited)},
          {"held_seconds", seconds(&attempt::Use::held)},
          {"bytes", is_right(copy) ? json(bytes) : json()},
          {"words_compared", copy.checked},
          {"launches", copy.launched},
          {"said", is_right(copy) ? json() : json(copy.said)}};
}

json way_json(const Way& way, std::uint64_t bytes) {
  json copies = json::array();
  for (const Copy& copy : way.copies) copies.push_back(copy_json(copy, copies.size() + 1, bytes));
  return {{"seconds", way.seconds}, {"copies", copies}};
}

}  // namespace

std::optional<Gpu> gpu_of(const std::string& line) {
  const json said = object_of(line);
  if (said.is_null() || !said.contains("gpu") || !said["gpu"].is_string()) return std::nullopt;
  const bool timed = said.contains("seconds") && said["seconds"].is_number();
  return Gpu{.name = said["gpu"].get<std::string>(),
             .free = whole(said, "free"),
             .total = whole(said, "total"),
             .steps = whole(said, "steps"),
             .seconds = timed ? said["seconds"].get<double>() : 0};
}

Way way_of(const attempt::Together& run, const attempt::Seen& seen) {
  Way way{.copies = {}, .seconds = run.seconds, .seen = seen};
  for (const attempt::CopyEnd& end : run.copies) {
    Copy copy{.end = end,
              .said = attempt::last_line_of(end.output),
              .pid = 0,
              .checked = 0,
              .launched = 0,
              .use = std::nullopt};
    if (const json said = object_of(copy.said); !said.is_null() && end.code == 0) {
      copy.pid = static_cast<pid_t>(whole(said, "pid"));
      copy.checked = whole(said, "checked");
      copy.launched = whole(said, "launches");
    }
    if (const auto use = seen.uses.find(copy.pid); copy.pid != 0 && use != seen.uses.end()) copy.use = use->second;
    way.copies.push_back(std::move(copy));
  }
  return way;
}

std::string opening(const Story& story) {
  if (!story.simulated) {
    return fmt::format(
        "{}: {} copies of one small CUDA program compute on it at once, each with {}.\n"
        "More than the GPU's memory together is what `rota demo --sim` shows: it is not taken from a real one.\n",
        story.gpu.name, story.copies, size_text(story.bytes));
  }
  const double times = static_cast<double>(story.bytes * story.copies) / static_cast<double>(story.gpu.total);
  const std::string why = story.why.empty() ? "" : fmt::format("No GPU works here: {}.\n", story.why);
  return fmt::format(
      "{}On a simulated {} of {}: {} copies of one small CUDA program, each with {} of memory,\n"
      "together {:.1f} times what the GPU has.\n",
      why, story.gpu.name, size_text(story.gpu.total), story.copies, size_text(story.bytes), times);
}

// The longest time in seconds that copies compute, whatever else this machine does.
void say_what_was_cut_short(Story& story) {
  const auto cut = [&](const Copy& copy) { return is_right(copy) && copy.launched < story.launches; };
  for (const auto& [way, name] :
       {std::pair<const Way&, const char*>{story.natively, "Natively"}, {story.under_rota, "Under rota"}}) {
    std::string made;
    for (const Copy& copy : way.copies) {
      if (cut(copy)) made += fmt::format("{}{}", made.empty() ? "" : ", ", copy.launched);
    }
    if (made.empty()) continue;
    story.seen.push_back(
        fmt::format("{} the time was up before all {} launches of a copy: {} were made.", name, story.launches, made));
  }
}

void judge(Story& story) {
  judge_natively(story);
  judge_under_rota(story);
  say_what_was_cut_short(story);
}

std::string as_text(const Story& story) {
  using Cells = std::array<std::string, 7>;
  std::vector<Cells> table = {{"", "", "result", "time", "waited", "had the GPU", "memory"}};
  const auto add = [&](const Way& way, const char* name) {
    for (std::size_t i = 0; i < way.copies.size(); ++i) {
      const Copy& copy = way.copies[i];
      table.push_back({i == 0 ? name : "", fmt::format("copy {}", i + 1), result_of(copy), time_text(copy.end.seconds),
                       copy.use ? time_text(copy.use->waited) : "-", copy.use ? time_text(copy.use->held) : "-",
                       is_right(copy) ? size_text(story.bytes) : "-"});
    }
  };
  add(story.natively, "natively");
  add(story.under_rota, "under rota");
  std::array<std::size_t, std::tuple_size_v<Cells>> widths{};
  for (const Cells& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  constexpr std::size_t kWords = 3;  // columns; the others hold figures
  std::string text = "\n";
  for (const Cells& row : table) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i < kWords ? fmt::format("  {:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += line + "\n";
  }
  text += "\n";
  for (const std::string& sentence : story.seen) text += sentence + "\n";
  for (const std::string& remark : story.remarks) text += remark + "\n";
  if (story.problems.empty()) text += "\nnext: rota run -- your program; rota status; man rota\n";
  return text;
}

std::string as_json(const Story& story) {
  json under_rota = way_json(story.under_rota, story.bytes);
  const Way& way = story.under_rota;
  under_rota["turns"] = story.rotad_is_here ? json(way.seen.grants) : json();
  under_rota["sharing"] = way.seen.sharing.empty() ? json() : json(way.seen.sharing);
  under_rota["own_rotad"] = story.own_rotad;
  const json all = {{"gpu", {{"name", story.gpu.name}, {"bytes", story.gpu.total}}},
                    {"simulated", story.simulated},
                    {"no_gpu", story.why.empty() ? json() : json(story.why)},
                    {"copies", story.copies},
                    {"bytes_each", story.bytes},
                    {"natively", way_json(story.natively, story.bytes)},
                    {"under_rota", under_rota},
                    {"as_expected", story.problems.empty()},
                    {"seen", story.seen},
                    {"problems", story.problems},
                    {"notes", story.remarks}};
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace rota::demo
