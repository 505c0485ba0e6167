// Turns the payloads of a call into text or JSON with the generated name tables.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/trace/names.h"
#include "tools/rota/trace_file.h"

namespace rota::tool {

enum class Syntax { kText, kJson };

const names::Api& names_of(const TraceCall& call);
std::string_view function_name(const TraceCall& call);

// `bytes` of that type as text (CU_STREAM_NON_BLOCKING, {x=1, y=2}, 0x7f00) or as JSON (names and addresses as
// strings).
std::string render_value(const names::Api& api, std::uint32_t type, std::span<const std::byte> bytes, Syntax syntax);

// "dptr=0x7ffd2c, bytesize=4096" or {"dptr":"0x7ffd2c","bytesize":4096}. What a payload lacks (damage) shows as "?".
std::string render_arguments(const TraceCall& call, Syntax syntax);
// What the call wrote, by parameter: "*dptr=0x7f0000" or {"dptr":"0x7f0000"}; empty text if nothing.
std::string render_outputs(const TraceCall& call, Syntax syntax);
// "CUDA_SUCCESS"; "void" for none. Only for a call that returned.
std::string render_result(const TraceCall& call, Syntax syntax);
// The function returns a status and it is not success.
bool failed(const TraceCall& call);

// Quoted, with what JSON wants escaped; bytes that are no UTF-8 become U+FFFD.
std::string quote(std::string_view text);

}  // namespace rota::tool
