// Found before fmt's own <fmt/format.h>: the same, and the promise that the function in which all formatting ends is
// compiled elsewhere (compiled_fmt.cpp). Release 9 promises that only of its lesser functions, so that every file that
// formats into a buffer of its own would compile 80 KB of machine code, which takes most of its time.
#pragma once

#include_next <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {

extern template void vformat_to<char>(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                                      locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
