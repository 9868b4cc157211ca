// fmt without its shared library (CMakeLists.txt says when): its functions, and those of its
// templates that its headers declare to be somewhere else.

#include <fmt/format-inl.h>

namespace fmt::detail {

template locale_ref::locale_ref(const std::locale& locale);
template std::locale locale_ref::get<std::locale>() const;
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float value) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double value) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref locale);
template char decimal_point_impl(locale_ref locale);
template void buffer<char>::append(const char* begin, const char* end);
template void vformat_to(buffer<char>& buffer, string_view format,
                         basic_format_args<buffer_context<char>> arguments, locale_ref locale);

}  // namespace fmt::detail
