#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/error.hpp"

namespace ddprun {

/// A value, or the Error that came in its place. Looking at what is not there is a bug: value() and
/// error() throw std::logic_error then, and `*` and `->` must not be used.
template <typename T>
class [[nodiscard]] Result {
public:
    using value_type = T;

    /// From anything that T can be made of without being asked to.
    template <typename U = T,
              typename = std::enable_if_t<std::is_convertible_v<U, T> &&
                                          !std::is_same_v<std::decay_t<U>, Result> &&
                                          !std::is_same_v<std::decay_t<U>, Error>>>
    // NOLINTNEXTLINE(google-explicit-constructor): a function returns its value as it is.
    Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
    Result() requires std::is_default_constructible_v<T> : state_(std::in_place_index<0>) {}

    [[nodiscard]] bool has_value() const { return state_.index() == 0; }
    [[nodiscard]] bool has_error() const { return state_.index() == 1; }
    explicit operator bool() const { return has_value(); }
    /// A Result is not its value. It is deleted so that the compiler's first error shows this line.
    template <typename Value>
    requires std::is_same_v<Value, T>
    operator Value() const = delete;  // NOLINT: check the Result first; then `*result` is its value

    [[nodiscard]] T& value() & { return check_value(), *std::get_if<0>(&state_); }
    [[nodiscard]] const T& value() const& { return check_value(), *std::get_if<0>(&state_); }
    [[nodiscard]] T&& value() && { return check_value(), std::move(*std::get_if<0>(&state_)); }

    [[nodiscard]] T& operator*() & { return *std::get_if<0>(&state_); }
    [[nodiscard]] const T& operator*() const& { return *std::get_if<0>(&state_); }
    [[nodiscard]] T&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
    [[nodiscard]] T* operator->() { return std::get_if<0>(&state_); }
    [[nodiscard]] const T* operator->() const { return std::get_if<0>(&state_); }

    [[nodiscard]] const Error& error() const& { return check_error(), *std::get_if<1>(&state_); }
    [[nodiscard]] Error&& error() && { return check_error(), std::move(*std::get_if<1>(&state_)); }

private:
    void check_value() const {
        if (!has_value()) {
            throw std::logic_error("value() of a failed Result: " + std::get_if<1>(&state_)->what);
        }
    }
    void check_error() const {
        if (!has_error()) {
            throw std::logic_error("error() of a Result that did not fail");
        }
    }

    std::variant<T, Error> state_;
};

/// Done, or the Error that says why not.
template <>
class [[nodiscard]] Result<void> {
public:
    using value_type = void;

    Result() = default;
    Result(Error error) : error_(std::move(error)), is_failed_(true) {}  // NOLINT

    [[nodiscard]] bool has_value() const { return !is_failed_; }
    [[nodiscard]] bool has_error() const { return is_failed_; }
    explicit operator bool() const { return has_value(); }

    void value() const {
        if (is_failed_) {
            throw std::logic_error("value() of a failed Result: " + error_.what);
        }
    }
    [[nodiscard]] const Error& error() const {
        if (!is_failed_) {
            throw std::logic_error("error() of a Result that did not fail");
        }
        return error_;
    }

private:
    Error error_;
    bool is_failed_ = false;
};

}  // namespace ddprun
