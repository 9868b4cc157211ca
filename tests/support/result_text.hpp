#pragma once

#include <string>

#include "base/error.hpp"
#include "tests/support/catch.hpp"

/// A failed check of a Result shows its error.
template <typename T>
struct Catch::StringMaker<boost::system::result<T, ddprun::Error>> {
    static std::string convert(const boost::system::result<T, ddprun::Error>& result) {
        return result ? "a value" : "error: " + result.error().what;
    }
};
