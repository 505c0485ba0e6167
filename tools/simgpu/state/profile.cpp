// Reads profiles. Every key of a file is in kFigures (or under [device]); keys that a file omits come from its base.
#include "tools/simgpu/profile.h"

#define TOML_EXCEPTIONS 0
#undef TOML_SHARED_LIB  // the packaged library has the parser with exceptions only; the headers have both
#undef TOML_HEADER_ONLY
#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <variant>

#include "scheduler/base/byte_size.h"
#include "tools/simgpu/state/options.h"

extern "C" struct {
  const char* name;
  const char* begin;
  const char* end;
} const rota_sim_profiles[];  // profiles.S; a null name ends it

namespace rota::sim {
namespace {

struct Figure {
  const char* section;
  const char* key;
  std::variant<double CostFigures::*, int64_t CostFigures::*> member;
  bool may_be_zero = false;
};

const Figure kFigures[] = {
    {"copy", "pinned_host_to_device", &CostFigures::pinned_host_to_device},
    {"copy", "pinned_device_to_host", &CostFigures::pinned_device_to_host},
    {"copy", "pageable_host_to_device", &CostFigures::pageable_host_to_device},
    {"copy", "pageable_device_to_host", &CostFigures::pageable_device_to_host},
    {"copy", "peer", &CostFigures::peer},
    {"copy", "fixed_host_to_device", &CostFigures::copy_fixed_host_to_device, true},
    {"copy", "fixed_device_to_host", &CostFigures::copy_fixed_device_to_host, true},
    {"link", "raw", &CostFigures::link_raw},
    {"link", "payload", &CostFigures::link_payload},
    {"link", "completion", &CostFigures::link_completion, true},
    {"link", "write", &CostFigures::link_write, true},
    {"link", "request", &CostFigures::link_request, true},
    {"link", "request_bytes", &CostFigures::link_request_bytes},
    {"link", "acknowledgement", &CostFigures::link_acknowledgement, true},
    {"memory", "device_bandwidth", &CostFigures::device_bandwidth},
    {"managed", "first_touch", &CostFigures::first_touch},
    {"managed", "first_touch_preferred", &CostFigures::first_touch_preferred},
    {"managed", "fresh_prefetch", &CostFigures::fresh_prefetch},
    {"managed", "prefetch_in", &CostFigures::prefetch_in},
    {"managed", "fault_piece", &CostFigures::fault_piece},
    {"compute", "launch", &CostFigures::launch, true},
    {"compute", "launch_latency", &CostFigures::launch_latency, true},
    {"compute", "slice", &CostFigures::slice},
    {"compute", "context_switch", &CostFigures::context_switch, true},
    {"host", "call", &CostFigures::call, true},
    {"context", "bytes", &CostFigures::context_bytes},
    {"context", "share", &CostFigures::context_share},
};

// No figure of a card is larger; sums of modelled times stay far below the maximum of int64.
constexpr double kLargest = 1e15;

class Reader {
 public:
  Reader(std::string source, Profile* profile) : source_(std::move(source)), profile_(profile) {}

  // Returns an empty string on success.
  std::string read(const toml::table& file) {
    for (auto&& [key, value] : file) {
      std::string section(key.str());
      if (section == "base") continue;  // load() has read it
      if (!value.is_table()) return wrong(value, section, "no such key");
      for (auto&& [inner, figure] : *value.as_table()) {
        std::string text = section == "device" ? device(std::string(inner.str()), figure)
                                               : cost(section, std::string(inner.str()), figure);
        if (!text.empty()) return text;
      }
    }
    return "";
  }

  std::string wrong(const toml::node& node, const std::string& key, const std::string& what) const {
    return source_ + ":" + std::to_string(node.source().begin.line) + ": " + key + ": " + what;
  }

 private:
  std::string cost(const std::string& section, const std::string& key, const toml::node& node) {
    for (const Figure& figure : kFigures) {
      if (section != figure.section || key != figure.key) continue;
      bool whole = std::holds_alternative<int64_t CostFigures::*>(figure.member);
      if (whole ? !node.is_integer() : !node.is_number()) {
        return wrong(node, section + "." + key, whole ? "give a whole number" : "give a number");
      }
      // An integer that a double cannot represent exactly is not read as a double.
      double value =
          node.is_integer() ? static_cast<double>(node.value<int64_t>().value_or(0)) : node.value<double>().value_or(0);
      bool in_range = std::isfinite(value) && value <= kLargest && (figure.may_be_zero ? value >= 0 : value >= 1);
      if (!in_range) {
        return wrong(node, section + "." + key, figure.may_be_zero ? "give 0 to 1e15" : "give 1 to 1e15");
      }
      if (whole) {
        profile_->cost.*std::get<1>(figure.member) = node.value<int64_t>().value_or(0);
      } else {
        profile_->cost.*std::get<0>(figure.member) = value;
      }
      return "";
    }
    return wrong(node, section + "." + key, "no such figure");
  }

  std::string device(const std::string& key, const toml::node& node) {
    DeviceFigures& device = profile_->device;
    if (key == "name") {
      auto text = node.value_exact<std::string>();
      if (!text || text->empty() || text->size() > 200)
        return wrong(node, "device.name", "give a string of 1 to 200 bytes");
      device.name = *text;
      return "";
    }
    if (key == "memory") {
      auto text = node.value_exact<std::string>();
      const std::optional<uint64_t> bytes =
          text                ? parse_bytes(*text)
          : node.is_integer() ? static_cast<uint64_t>(std::max<int64_t>(node.value<int64_t>().value_or(0), 0))
                              : 0;
      if (!bytes || *bytes < kLeastMemory || *bytes > kMostMemory) {
        return wrong(node, "device.memory", "give bytes from 8M to 256G, as a number or a string like \"80G\"");
      }
      device.memory = *bytes;
      return "";
    }
    if (key == "mig") {
      auto flag = node.value_exact<bool>();
      if (!flag) return wrong(node, "device.mig", "give true or false");
      device.mig = *flag;
      return "";
    }
    if (key != "attributes" || !node.is_table()) return wrong(node, "device." + key, "no such figure");
    for (auto&& [name, value] : *node.as_table()) {
      std::string attribute(name.str());
      if (!value.is_integer()) return wrong(value, "device.attributes." + attribute, "give a whole number");
      if (!device.set_attribute(attribute, value.value<int64_t>().value_or(0))) {
        return wrong(value, "device.attributes." + attribute, "no such attribute, or not a value of it");
      }
    }
    return "";
  }

  std::string source_;
  Profile* profile_;
};

bool is_file(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".toml");
}

bool read_file(const std::string& path, std::string* text) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  char piece[4096];
  for (size_t length = 0; (length = std::fread(piece, 1, sizeof piece, file)) > 0;) text->append(piece, length);
  bool whole = std::ferror(file) == 0;  // a directory can be opened, but not read
  std::fclose(file);
  return whole;
}

std::string quoted_names() {
  std::string text;
  for (const std::string& name : profile_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Result<Profile> load(const std::string& name_or_path, bool may_be_file) {
  std::string text;
  bool built_in = false;
  if (may_be_file && is_file(name_or_path)) {
    if (!read_file(name_or_path, &text)) return Error{"cannot read the profile " + name_or_path};
  } else {
    for (auto* row = rota_sim_profiles; row->name != nullptr; ++row) {
      if (name_or_path != row->name) continue;
      text.assign(row->begin, row->end);
      built_in = true;
    }
    if (!built_in) {
      return Error{"there is no profile '" + name_or_path + "': give " + quoted_names() + " or a file's path"};
    }
  }
  toml::parse_result parsed = toml::parse(text, name_or_path);
  if (!parsed) {
    return Error{name_or_path + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
                 std::string(parsed.error().description())};
  }
  Profile profile{};
  if (!built_in) {
    std::string base = profile_names().front();
    Reader reader(name_or_path, &profile);
    if (const toml::node* node = parsed.table().get("base")) {
      auto named = node->value_exact<std::string>();
      if (!named) return Error{reader.wrong(*node, "base", "give the name of a profile")};
      base = *named;
    }
    auto from = load(base, false);
    if (!from) return Error{name_or_path + ": base: " + from.error().text};
    profile = *from;
  }
  profile.name = name_or_path;
  std::string problem = Reader(name_or_path, &profile).read(parsed.table());
  if (!problem.empty()) return Error{problem};
  return profile;
}

}  // namespace

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (auto* row = rota_sim_profiles; row->name != nullptr; ++row) names.emplace_back(row->name);
  return names;
}

Result<Profile> load_profile(const std::string& name_or_path) {
  return load(name_or_path, true);
}

const Profile& default_profile() {
  static const Profile* profile = [] {
    auto loaded = load(profile_names().front(), false);
    return new Profile(loaded ? std::move(*loaded) : Profile{});  // a test checks that it can be loaded
  }();
  return *profile;
}

int64_t nanoseconds_at(uint64_t bytes, double rate) {
  return static_cast<int64_t>(static_cast<double>(bytes) / rate * 1e9);
}

// The cost of a block that faults: the driver's fault service (measured where nothing moves) plus its pieces, each a
// copy.
double CostFigures::fault_in() const {
  auto bytes = static_cast<double>(kManagedBlock);
  double pieces = std::max(1.0, bytes / static_cast<double>(fault_piece));
  double seconds = bytes / first_touch + bytes / pinned_host_to_device +
                   pieces * static_cast<double>(copy_fixed_host_to_device) * 1e-9;
  return bytes / seconds;
}

// Managed memory on the host is pageable.
double CostFigures::eviction() const {
  return pageable_device_to_host;
}

namespace {
// The rates of both directions of the link together. Each direction carries its own packets, plus requests and
// acknowledgements for the other direction's packets. Its capacity follows from the rate that it reaches by itself.
struct Duplex {
  double down = 0;  // host to device, bytes of data per second
  double up = 0;
  explicit Duplex(const CostFigures& cost) {
    auto payload = static_cast<double>(cost.link_payload);
    double down_wire = 1 + static_cast<double>(cost.link_completion) / payload;  // wire bytes per byte of data
    double up_wire = 1 + static_cast<double>(cost.link_write) / payload;
    double acknowledged = static_cast<double>(cost.link_acknowledgement) / payload;
    double asked = static_cast<double>(cost.link_request) / static_cast<double>(cost.link_request_bytes) + acknowledged;
    double down_limit = cost.pinned_host_to_device * down_wire;
    double up_limit = cost.pinned_device_to_host * up_wire;
    // down * down_wire + up * acknowledged = down_limit, up * up_wire + down * asked = up_limit
    double determinant = down_wire * up_wire - acknowledged * asked;
    down = (down_limit * up_wire - up_limit * acknowledged) / determinant;
    up = (up_limit * down_wire - down_limit * asked) / determinant;
    // The figures of a link that is far from full would give impossible results, so no direction gets less than half.
    down = std::clamp(down, cost.pinned_host_to_device / 2, cost.pinned_host_to_device);
    up = std::clamp(up, cost.pinned_device_to_host / 2, cost.pinned_device_to_host);
  }
};
}  // namespace

double CostFigures::duplex_host_to_device() const {
  return Duplex(*this).down;
}
double CostFigures::duplex_device_to_host() const {
  return Duplex(*this).up;
}

}  // namespace rota::sim
