#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace ddprun::worker {

/// Stands for any field of `Struct` when its fields are counted.
template <typename Struct>
struct AnyField {
    template <typename Field>
    requires(!std::is_same_v<std::remove_cvref_t<Field>, Struct>) operator Field() const;
};

template <typename Struct, std::size_t... kIndex>
constexpr bool takes_fields(std::index_sequence<kIndex...> /*fields*/) {
    return requires {
        Struct{(static_cast<void>(kIndex), AnyField<Struct>{})...};
    };
}

/// Fields of a struct without constructors.
template <typename Struct, std::size_t kCount = 9>
constexpr std::size_t count_fields() {
    if constexpr (kCount == 0 || takes_fields<Struct>(std::make_index_sequence<kCount>())) {
        return kCount;
    } else {
        return count_fields<Struct, kCount - 1>();
    }
}

/// The fields of a struct without constructors, as a tuple of references.
template <typename Struct>
auto fields_of(const Struct& value) {
    constexpr std::size_t kCount = count_fields<Struct>();
    static_assert(
        kCount <= 8,
        "an output of a network, or a batch, has at most 8 fields; nest structs for more");
    if constexpr (kCount == 1) {
        const auto& [a] = value;
        return std::tie(a);
    } else if constexpr (kCount == 2) {
        const auto& [a, b] = value;
        return std::tie(a, b);
    } else if constexpr (kCount == 3) {
        const auto& [a, b, c] = value;
        return std::tie(a, b, c);
    } else if constexpr (kCount == 4) {
        const auto& [a, b, c, d] = value;
        return std::tie(a, b, c, d);
    } else if constexpr (kCount == 5) {
        const auto& [a, b, c, d, e] = value;
        return std::tie(a, b, c, d, e);
    } else if constexpr (kCount == 6) {
        const auto& [a, b, c, d, e, f] = value;
        return std::tie(a, b, c, d, e, f);
    } else if constexpr (kCount == 7) {
        const auto& [a, b, c, d, e, f, g] = value;
        return std::tie(a, b, c, d, e, f, g);
    } else if constexpr (kCount == 8) {
        const auto& [a, b, c, d, e, f, g, h] = value;
        return std::tie(a, b, c, d, e, f, g, h);
    } else {
        return std::tuple<>();
    }
}

/// Adds every tensor of what a network's forward returns: a tensor, or any nest of optionals,
/// pointers, pairs, tuples, containers, maps (their values too) and structs without constructors.
/// What is none of these counts as something without tensors.
template <typename Output>
void collect_tensors(const Output& output, std::vector<torch::Tensor>& found) {
    if constexpr (std::is_convertible_v<const Output&, const torch::Tensor&>) {
        const torch::Tensor& tensor = output;
        if (tensor.defined()) {
            found.push_back(tensor);
        }
    } else if constexpr (std::is_arithmetic_v<Output> || std::is_enum_v<Output> ||
                         std::is_convertible_v<const Output&, std::string_view>) {
        // No tensor in it.
    } else if constexpr (requires {
                             *output;
                             static_cast<bool>(output);
                         }) {
        if (output) {
            collect_tensors(*output, found);
        }
    } else if constexpr (requires { std::tuple_size<Output>::value; }) {
        std::apply([&found](const auto&... part) { (collect_tensors(part, found), ...); }, output);
    } else if constexpr (requires { output.begin() != output.end(); }) {
        for (const auto& part : output) {
            collect_tensors(part, found);
        }
    } else if constexpr (requires {
                             output.key();
                             output.value();
                         }) {
        collect_tensors(output.value(), found);  // of torch::OrderedDict and c10::Dict
    } else if constexpr (std::is_aggregate_v<Output>) {
        collect_tensors(fields_of(output), found);
    }
}

}  // namespace ddprun::worker
