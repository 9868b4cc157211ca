#pragma once

namespace ddprun {

/// One callable out of several lambdas, for std::visit: a type without a handler does not compile.
template <typename... Handlers>
struct Overloaded : Handlers... {
    using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace ddprun
