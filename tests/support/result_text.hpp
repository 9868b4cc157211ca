#pragma once

#include <string>

#include "base/result.hpp"
#include "tests/support/catch.hpp"

/// A failed check of a Result shows its error.
template <typename T>
struct Catch::StringMaker<ddprun::Result<T>> {
    static std::string convert(const ddprun::Result<T>& result) {
        return result ? "a value" : "error: " + result.error().what;
    }
};
