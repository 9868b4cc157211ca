#pragma once

#include <string>

#include "base/printable.hpp"

namespace ddprun::launcher {

/// A field of `object` as it is; empty: `object` is none, or has no such field, or null there.
template <typename Json>
[[nodiscard]] std::string field_of(const Json& object, const char* name) {
    const auto field = object.is_object() ? object.find(name) : object.end();
    if (field == object.end() || field->is_null()) {
        return {};
    }
    return field->is_string() ? field->template get<std::string>() : field->dump();
}

/// The same for a terminal, in one line.
template <typename Json>
[[nodiscard]] std::string said(const Json& object, const char* name) {
    return printable(field_of(object, name), std::string::npos);
}

/// `object` as one line, with its end, whatever bytes its texts hold.
template <typename Json>
[[nodiscard]] std::string json_line(const Json& object) {
    return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::launcher
