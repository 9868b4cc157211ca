#pragma once

#include <concepts>
#include <type_traits>

namespace ddprun {

/// `Is<Message> auto& message` takes a Message, const or not, and nothing that converts to one: the
/// fields of a message are listed once for who writes and for who reads them.
template <typename T, typename Message>
concept Is = std::same_as<std::remove_const_t<T>, Message>;

}  // namespace ddprun
