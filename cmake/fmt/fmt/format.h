// Found before fmt's own <fmt/format.h>: the same, plus a declaration that the function at the end of all formatting is
// instantiated elsewhere (compiled_fmt.cpp). Release 9 declares that only for minor functions, so every file that
// formats into its own buffer would compile 80 KB of machine code, which takes most of its time.
#pragma once

#include_next <fmt/format.h>

FMT_BEGIN_NAMESPACE
namespace detail {

extern template void vformat_to<char>(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>,
                                      locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
