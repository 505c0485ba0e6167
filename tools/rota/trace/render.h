// Turns the bytes of one value into text or JSON with the generated name tables.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trace/names.h"
#include "tools/rota/trace/objects.h"

namespace rota::tool {

// Deeper than any CUDA struct; a guard for damaged tables only.
inline constexpr int kDeepest = 12;

enum class Syntax { kText, kJson };

struct RenderOptions {
  Syntax syntax = Syntax::kText;
  // Text: addresses as numbers instead of names. JSON has both anyway.
  bool raw_addresses = false;
  // Kernels by the name in their module instead of as C++ writes it.
  bool mangled = false;
  // Text: the most elements of an array to show; 0: all that were recorded. JSON has all.
  std::size_t elements = 16;
};

// Quoted, with what JSON wants escaped; bytes that are no UTF-8 become U+FFFD.
std::string quote(std::string_view text);
// "saxpy(int, float)" of "_Z5saxpyif"; other text unchanged.
std::string demangled(const std::string& name);

std::uint64_t load_unsigned(std::span<const std::byte> bytes);

// The member of a union that its rule picks, as a field of the union's record; null: none.
const names::Field* chosen_member(const names::Api& api, const names::Record& record, std::string_view record_path,
                                  const names::Field& union_field, std::span<const std::byte> bytes);

class Renderer {
 public:
  // `objects` may be null: addresses are numbers then.
  Renderer(const names::Api& api, const RenderOptions& options, ObjectNames* objects = nullptr, Moment moment = {})
      : api_(api), options_(options), objects_(objects), moment_(moment) {}

  // The values that follow were written by the call, and looked up in `parent` if there is one.
  void written(const std::optional<Handle>& parent) {
    written_ = true;
    parent_ = parent;
  }
  // What the program passed to say which member of a union value counts (cuStreamSetAttribute's attr).
  void selector(std::uint32_t type, std::span<const std::byte> bytes) { selector_ = Selector{type, bytes}; }
  // An array that a field of the next struct points to.
  void list_behind(std::string_view field, std::uint32_t element, std::span<const std::byte> bytes, bool cut_off) {
    lists_.push_back({field, element, bytes, cut_off});
  }
  void no_lists_behind() { lists_.clear(); }
  // Fields that are shown elsewhere (a launch's geometry).
  void leave_out(std::span<const std::string_view> fields) { left_out_ = fields; }

  std::string value(std::uint32_t type, std::span<const std::byte> bytes) const { return value(type, bytes, {}, 0); }
  // As many elements as the bytes hold.
  std::string array(std::uint32_t element, std::span<const std::byte> bytes, bool cut_off) const {
    return array(element, bytes, cut_off, {}, 0);
  }
  static std::string text(std::span<const std::byte> bytes);
  // An address or handle; "&" for one in the program's own memory, which differs from run to run.
  std::string address(std::string_view type, std::uint64_t value) const;
  std::string unknown() const { return plain("?"); }
  // Text in text, a string in JSON.
  std::string plain(const std::string& text) const;

  // An address and the value behind it.
  std::string behind(const std::string& address, const std::string& inside) const;

  bool json() const { return options_.syntax == Syntax::kJson; }
  bool names_addresses() const { return objects_ != nullptr && !options_.raw_addresses; }

 private:
  struct List {
    std::string_view field;
    std::uint32_t element;
    std::span<const std::byte> bytes;
    bool cut_off;
  };
  struct Selector {
    std::uint32_t type;
    std::span<const std::byte> bytes;
  };

  std::string value(std::uint32_t type, std::span<const std::byte> bytes, const std::string& path, int depth) const;
  std::string array(std::uint32_t element, std::span<const std::byte> bytes, bool cut_off, const std::string& path,
                    int depth) const;
  std::string floating(std::span<const std::byte> bytes) const;
  std::string enumeration(const names::Type& type, std::span<const std::byte> bytes) const;
  std::string record(const names::Record& record, std::span<const std::byte> bytes, const std::string& path,
                     int depth) const;
  std::string union_value(const names::Record& record, const names::Field* member, std::span<const std::byte> bytes,
                          const std::string& path, int depth) const;
  std::string field_value(const names::Field& field, std::span<const std::byte> bytes, const std::string& path,
                          int depth) const;
  std::string address_name(std::string_view type, std::uint64_t value) const;

  const names::Api& api_;
  RenderOptions options_;
  ObjectNames* objects_;
  Moment moment_;
  bool written_ = false;
  std::optional<Handle> parent_;
  std::optional<Selector> selector_;
  std::vector<List> lists_;
  std::span<const std::string_view> left_out_;
};

}  // namespace rota::tool
