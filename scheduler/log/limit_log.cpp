#include "scheduler/log/limit_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rota::scheduler {
namespace {

std::string words_of(const Reservation& each) {
  return words("", each.device, each.movable, each.fixed, each.swapped);
}

// A key in one word: bytes that a word cannot have are %, followed by their hexadecimal value.
std::string word_of(const std::string& key) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string word;
  for (const char each : key) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte > ' ' && byte < 0x7f && byte != '%') {
      word += each;
    } else {
      word += {'%', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return word;
}

struct LimitEventWords {
  std::string operator()(const limit::Hold& hold) const { return words("hold", hold.until.count()); }
  std::string operator()(const limit::Join& join) const { return words("join", join.client); }
  std::string operator()(const limit::SetLimits& set) const {
    return "set_limits " + word_of(set.account) + words("", set.limits.device, set.limits.host);
  }
  std::string operator()(const limit::Configure& each) const {
    return "configure " + word_of(each.account.key) + words("", each.account.limits.device, each.account.limits.host);
  }
  std::string operator()(const limit::AddGpu& add) const {
    return words("add_gpu", add.client, add.gpu, add.context) + (add.measurable ? " measurable" : "");
  }
  std::string operator()(const limit::Measured& each) const {
    return words("measured", each.client, each.gpu, each.context);
  }
  std::string operator()(const limit::NotMeasured& each) const { return words("not_measured", each.client, each.gpu); }
  std::string operator()(const limit::Read& read) const {
    return words("read", read.gpu) + (read.begun ? words("", read.begun->count()) : "");
  }
  std::string operator()(const limit::GpuChanged& changed) const { return words("gpu_changed", changed.gpu); }
  std::string operator()(const limit::Reserve& each) const {
    return words("reserve", each.client, each.gpu, each.number) + words_of(each.wanted) +
           words("", each.patience.count());
  }
  std::string operator()(const limit::State& each) const {
    return words("state", each.client, each.gpu) + words_of(each.has) + words("", each.answered, each.round);
  }
  std::string operator()(const limit::Confirm& each) const {
    return words("confirm", each.client, each.gpu, each.on_gpu, each.on_host);
  }
  std::string operator()(const limit::Pin& each) const { return words("pin", each.client, each.gpu, each.bytes); }
  std::string operator()(const limit::UseHost& each) const {
    return words("use_host", each.client, each.use.has, each.use.spare, each.use.lacks);
  }
  std::string operator()(const limit::BoundHost& each) const { return words("bound_host", each.client); }
  std::string operator()(const limit::ShareHost&) const { return "share_host"; }
  std::string operator()(const limit::AwaitRoom& each) const {
    const RoomQueue::Request& request = each.request;
    using What = protocol::AwaitRoom::What;
    return words("await_room", request.client, request.gpu, request.number, request.bytes, request.since.count(),
                 request.tried.count()) +
           (request.what == What::kSwapped   ? " swapped"
            : request.what == What::kContext ? " context"
                                             : "");
  }
  std::string operator()(const limit::Stays& each) const {
    return words("stays", each.client, each.gpu, each.what.gang, each.what.bytes, each.what.began.count()) +
           (each.what.blocks ? " blocks" : "");
  }
  std::string operator()(const limit::MemoryWait& wait) const { return words("memory_wait", wait.patience.count()); }
  std::string operator()(const limit::Leave& leave) const {
    return words("leave", leave.client) + (leave.ended ? " ended" : "");
  }
  std::string operator()(const limit::Tick&) const { return "tick"; }
};

int digit_of(char each) {
  if (each >= '0' && each <= '9') return each - '0';
  return each >= 'a' && each <= 'f' ? each - 'a' + 10 : -1;
}

std::string key_of(std::string_view word) {
  std::string key;
  for (std::size_t at = 0; at < word.size(); ++at) {
    const bool coded =
        word[at] == '%' && at + 2 < word.size() && digit_of(word[at + 1]) >= 0 && digit_of(word[at + 2]) >= 0;
    key += coded ? static_cast<char>(digit_of(word[at + 1]) * 16 + digit_of(word[at + 2])) : word[at];
    if (coded) at += 2;
  }
  return key;
}

}  // namespace

std::optional<LimitEvent> read_limit_event(std::string_view name, Words& words) {
  const auto client = [&] { return words.number<ClientId>("client number"); };
  const auto bytes = [&] { return words.number<Bytes>("number of bytes"); };
  const auto gpu_bytes = [&] { return words.number<Bytes>("number of bytes", protocol::kMaxGpuBytes); };
  const auto number = [&] { return words.number<std::uint32_t>("number"); };
  const auto time = [&] { return Time(words.number<std::int64_t>("time in nanoseconds", kLatest.count())); };
  const auto limits = [&] {
    const Bytes device = bytes();
    return Limits{.device = device, .host = bytes()};
  };
  const auto reservation = [&] {
    Reservation each;
    for (Bytes* amount : {&each.device, &each.movable, &each.fixed, &each.swapped}) *amount = bytes();
    return each;
  };
  if (name == "tick") return limit::Tick{};
  if (name == "share_host") return limit::ShareHost{};
  if (name == "hold") return limit::Hold{time()};
  if (name == "memory_wait") return limit::MemoryWait{time()};
  if (name == "set_limits") {
    std::string key = key_of(words.next("account"));
    return limit::SetLimits{std::move(key), limits()};
  }
  if (name == "configure") {
    std::string key = key_of(words.next("account"));
    return limit::Configure{{.key = std::move(key), .name = {}, .limits = limits()}};
  }
  if (name == "read") {
    limit::Read read{.gpu = words.gpu(), .begun = std::nullopt};
    if (!words.at_end()) read.begun = time();
    return read;
  }
  if (name == "gpu_changed") return limit::GpuChanged{words.gpu()};
  constexpr std::string_view kOfClients[] = {"join",     "account", "leave",      "bound_host", "use_host",
                                             "add_gpu",  "state",   "reserve",    "confirm",    "not_measured",
                                             "measured", "pin",     "await_room", "stays"};
  if (std::find(std::begin(kOfClients), std::end(kOfClients), name) == std::end(kOfClients)) return std::nullopt;
  const ClientId id = client();
  if (name == "join") return limit::Join{id, {}};
  if (name == "account") {
    Quota::Membership account{.key = key_of(words.next("account")), .name = {}, .limits = {}};
    account.limits = limits();
    account.shared = words.may_end_with("shared");
    return limit::Join{id, {std::move(account)}};
  }
  if (name == "leave") return limit::Leave{id, words.may_end_with("ended")};
  if (name == "bound_host") return limit::BoundHost{id};
  if (name == "use_host") {
    limit::UseHost each{id, {}};
    for (Bytes* amount : {&each.use.has, &each.use.spare, &each.use.lacks}) *amount = bytes();
    return each;
  }
  const GpuIndex gpu = words.gpu();
  if (name == "not_measured") return limit::NotMeasured{id, gpu};
  if (name == "measured") return limit::Measured{id, gpu, gpu_bytes()};
  if (name == "pin") return limit::Pin{id, gpu, gpu_bytes()};
  if (name == "stays") {
    limit::Stays each{.client = id, .gpu = gpu, .what = {.gang = number()}};
    each.what.bytes = gpu_bytes();
    each.what.began = time();
    each.what.blocks = words.may_end_with("blocks");
    return each;
  }
  if (name == "await_room") {
    RoomQueue::Request request{.client = id, .gpu = gpu, .number = number(), .bytes = 0};
    request.bytes = gpu_bytes();
    request.since = time();
    request.tried = time();
    using What = protocol::AwaitRoom::What;
    if (words.may_end_with("swapped")) request.what = What::kSwapped;
    if (words.may_end_with("context")) request.what = What::kContext;
    return limit::AwaitRoom{request};
  }
  if (name == "add_gpu") {
    limit::AddGpu add{.client = id, .gpu = gpu, .context = gpu_bytes()};
    add.measurable = words.may_end_with("measurable");
    return add;
  }
  if (name == "confirm") {
    limit::Confirm each{.client = id, .gpu = gpu, .on_gpu = 0, .on_host = 0};
    each.on_gpu = bytes();
    each.on_host = bytes();
    return each;
  }
  if (name == "state") {
    limit::State each{.client = id, .gpu = gpu, .has = reservation(), .answered = 0, .round = 0};
    each.answered = number();
    each.round = number();
    return each;
  }
  limit::Reserve each{.client = id, .gpu = gpu, .number = number(), .wanted = {}};
  each.wanted = reservation();
  each.patience = time();
  return each;
}

std::string log_lines(const LimitEvent& event, Time now, Time logged) {
  const std::string begin = words("", logged.count()).substr(1) + words(" limits", now.count()) + ' ';
  std::string lines = begin + std::visit(LimitEventWords(), event) + '\n';
  // One line each: a process may belong to many cgroups.
  if (const auto* join = std::get_if<limit::Join>(&event)) {
    for (const Quota::Membership& each : join->accounts) {
      lines += begin + words("account", join->client) + ' ' + word_of(each.key) +
               words("", each.limits.device, each.limits.host) + (each.shared ? " shared\n" : "\n");
    }
  }
  return lines;
}

std::string log_lines(const Quota& quota, const LimitDecisions& decisions) {
  std::string lines;
  for (const Quota::Answer& each : decisions.outcome.answers) {
    lines += words(each.granted ? "> reserved" : "> refused", each.client, each.gpu, each.number) +
             words_of(each.reserved) + '\n';
  }
  for (const RoomQueue::Answer& each : decisions.outcome.rooms) {
    lines += words(each.again ? "> try_again" : "> no_room", each.client, each.gpu, each.number) + '\n';
  }
  for (const ClientId client : decisions.outcome.tighten) lines += words("> tighten", client, quota.round()) + '\n';
  for (const GpuIndex gpu : decisions.outcome.measure) lines += words("> measure", gpu) + '\n';
  for (const ClientId client : decisions.shared) {
    const Quota::HostShare share = quota.host_share(client);
    lines += words("> share", client, share.most, share.spare) + '\n';
  }
  return lines;
}

}  // namespace rota::scheduler
