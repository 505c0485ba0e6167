// Scenarios of the scheduler's core (tests/scenarios): the lines that they have in addition to those of an event log.
#pragma once

#include <charconv>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "scheduler/core/core.h"

namespace rota::scheduler {

// The lines without units: 10ms and 2s in nanoseconds, 300M in bytes.
inline std::string without_units(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    const bool begins = begin == 0 || std::string_view(" =\n").find(text[begin - 1]) != std::string_view::npos;
    if (at == begin || !begins) {
      if (at == begin) ++at;
      plain += text.substr(begin, at - begin);
      continue;
    }
    const std::string_view unit = text.substr(at, text.find_first_of(" ,;\n", at) - at);
    const std::uint64_t factor = unit == "M"    ? std::uint64_t{1} << 20
                                 : unit == "us" ? 1'000
                                 : unit == "ms" ? 1'000'000
                                 : unit == "s"  ? 1'000'000'000
                                                : 0;
    std::uint64_t number = 0;
    std::from_chars(text.data() + begin, text.data() + at, number);
    plain += factor != 0 ? std::to_string(number * factor) : std::string(text.substr(begin, at - begin));
    if (factor != 0) at += unit.size();
  }
  return plain;
}

inline std::string text_of(const ClientState* client) {
  if (client == nullptr) return "gone";
  std::ostringstream text;
  const char* between = "";
  if (client->held != 0) {
    text << "holds " << std::hex << client->held << std::dec;
    if (client->waiters != 0) text << " until " << client->drain_at.count();
    if (client->alone_until != Time{}) text << " alone until " << client->alone_until.count();
    between = ", ";
  }
  if (client->wanted != 0) {
    text << between << "waits for " << std::hex << client->wanted << std::dec;
    between = ", ";
  }
  if (client->overrun) text << between << "is overrun";
  return text.str().empty() ? "rests" : text.str();
}

// The core's answer to a question, which is the words before the colon of a line "#= client 1: holds 1". Nothing if
// there is no such question. A set of GPUs is hexadecimal, as in an event log.
inline std::optional<std::string> answer(const Core& core, const std::string& question) {
  std::istringstream words(question);
  std::string what;
  std::uint32_t one = 0;
  std::uint32_t two = 0;
  words >> what >> one >> two;
  if (what == "client") return text_of(core.client(one));
  if (what == "promised") return std::to_string(core.promised_bytes(one, two));
  if (what == "asked") return std::to_string(core.asked_bytes(one, two));
  if (what == "to_clear") return std::to_string(core.bytes_to_clear(one, two));
  if (what == "resident") return std::to_string(core.resident_bytes(one, two));
  if (what == "lacks") return std::to_string(core.use(one, two, Time{}).lacks);
  if (what == "lacks_for_now") return std::to_string(core.use(one, two, Time{}).lacks_for_now);
  if (what == "fixed") return std::to_string(core.use(one, two, Time{}).fixed);
  if (what == "fixed_for_now") return std::to_string(core.use(one, two, Time{}).fixed_for_now);
  if (what == "later_gpus") return std::to_string(core.later_gpus());
  if (what == "movable_gpus") return std::to_string(core.movable_gpus());
  if (what == "clearing_gpus") return std::to_string(core.clearing_gpus());
  if (what == "next_turn") return std::to_string(core.next_turn(one).count());
  if (what == "first_waiting") {
    const auto first = core.first_waiting(one);
    return first ? std::to_string(*first) : "nobody";
  }
  if (what == "give_back_by") return std::to_string(core.give_back_by(one).count());
  if (what == "holders") return std::to_string(core.gpu(one).holders);
  if (what == "waiters") return std::to_string(core.gpu(one).waiters);
  if (what == "overcommitted") return core.gpu(one).crowded ? "yes" : "no";
  if (what == "outside") return std::to_string(core.gpu(one).outside);
  if (what == "next_deadline") {
    const auto deadline = core.next_deadline();
    return deadline ? std::to_string(deadline->count()) : "none";
  }
  return std::nullopt;
}

}  // namespace rota::scheduler
