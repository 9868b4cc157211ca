#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace ddprun::worker {

/// Stands for any value with which a field of `Struct` may begin. A field that is an array takes as
/// many of them as it has elements.
template <typename Struct>
struct AnyField {
    template <typename Field>
    requires(!std::is_same_v<std::remove_cvref_t<Field>, Struct>) operator Field() const;
};

/// Stands for a base class of `Struct`.
template <typename Struct>
struct AnyBase {
    template <typename Base>
    requires(std::is_base_of_v<Base, Struct> && !std::is_same_v<Base, Struct>) operator Base()
        const;
};

template <typename Struct, std::size_t... kIndex>
constexpr bool takes_values(std::index_sequence<kIndex...> /*values*/) {
    return requires {
        Struct{(static_cast<void>(kIndex), AnyField<Struct>{})...};
    };
}

/// The same with a field between them that is value-initialised, however many values it takes.
template <typename Struct, std::size_t... kBefore, std::size_t... kBehind>
constexpr bool takes_values_around_field(std::index_sequence<kBefore...> /*before*/,
                                         std::index_sequence<kBehind...> /*behind*/) {
    return requires {
        Struct{(static_cast<void>(kBefore), AnyField<Struct>{})...,
               {},
               (static_cast<void>(kBehind), AnyField<Struct>{})...};
    };
}

template <typename Struct, std::size_t... kIndex>
constexpr bool has_base(std::index_sequence<kIndex...> /*values behind it*/) {
    return requires {
        Struct{AnyBase<Struct>{}, (static_cast<void>(kIndex), AnyField<Struct>{})...};
    };
}

inline constexpr std::size_t kValuesMax = 64;  ///< of a struct whose fields are counted

/// How many values `Struct` takes at most; none: more than kValuesMax.
template <typename Struct, std::size_t kCount = 0>
constexpr std::optional<std::size_t> count_values() {
    if constexpr (kCount > kValuesMax) {
        return std::nullopt;
    } else if constexpr (takes_values<Struct>(std::make_index_sequence<kCount>()) &&
                         !takes_values<Struct>(std::make_index_sequence<kCount + 1>())) {
        return kCount;
    } else {
        return count_values<Struct, kCount + 1>();
    }
}

/// How many of `kAll` values the field takes that begins with value `kBefore`: as many as are too
/// many behind it. One if it cannot be value-initialised.
template <typename Struct, std::size_t kAll, std::size_t kBefore, std::size_t kOwn = 1>
constexpr std::size_t count_own_values() {
    if constexpr (kBefore + kOwn > kAll) {
        return 1;
    } else if constexpr (takes_values_around_field<Struct>(
                             std::make_index_sequence<kBefore>(),
                             std::make_index_sequence<kAll - kBefore - kOwn>())) {
        return kOwn;
    } else {
        return count_own_values<Struct, kAll, kBefore, kOwn + 1>();
    }
}

template <typename Struct, std::size_t kAll, std::size_t kBefore = 0>
constexpr std::size_t count_fields_from() {
    if constexpr (kBefore == kAll) {
        return 0;
    } else {
        constexpr std::size_t kOwn = count_own_values<Struct, kAll, kBefore>();
        return 1 + count_fields_from<Struct, kAll, kBefore + kOwn>();
    }
}

/// The number of fields of a struct without constructors. Returns none if `Struct` is something
/// else, or has a base class, or fields whose number cannot be told.
template <typename Struct>
constexpr std::optional<std::size_t> count_fields() {
    if constexpr (!std::is_aggregate_v<Struct> || std::is_array_v<Struct> ||
                  std::is_union_v<Struct>) {
        return std::nullopt;
    } else {
        constexpr std::optional<std::size_t> kAll = count_values<Struct>();
        if constexpr (!kAll.has_value()) {
            return std::nullopt;
        } else if constexpr (takes_values_around_field<Struct>(std::make_index_sequence<*kAll>(),
                                                               std::index_sequence<>())) {
            return std::nullopt;  // there is one more, which takes no value
        } else if constexpr (*kAll == 0) {
            return 0;
        } else if constexpr (has_base<Struct>(std::make_index_sequence<*kAll - 1>())) {
            return std::nullopt;
        } else {
            return count_fields_from<Struct, *kAll>();
        }
    }
}

inline constexpr std::size_t kFieldsMax = 8;

/// True if visit_fields() can visit the fields of a `Struct`.
template <typename Struct>
constexpr bool has_visible_fields() {
    constexpr std::optional<std::size_t> kCount = count_fields<std::remove_const_t<Struct>>();
    return kCount.has_value() && *kCount <= kFieldsMax;
}

/// A field to visit. Numbers are copied: a bit-field can have no reference.
template <typename Field>
requires(!std::is_arithmetic_v<Field> && !std::is_enum_v<Field>) Field& field_of(Field& field) {
    return field;
}
template <typename Field>
requires(std::is_arithmetic_v<Field> || std::is_enum_v<Field>) Field field_of(Field field) {
    return field;
}

template <typename Visit, typename... Fields>
void visit_all(const Visit& visit, Fields&&... fields) {
    (visit(fields), ...);
}

/// Calls `visit` with each field of a struct that has_visible_fields().
template <typename Struct, typename Visit>
void visit_fields(Struct& value, const Visit& visit) {
    constexpr std::size_t kCount = *count_fields<std::remove_const_t<Struct>>();
    if constexpr (kCount == 1) {
        auto& [a] = value;
        visit_all(visit, field_of(a));
    } else if constexpr (kCount == 2) {
        auto& [a, b] = value;
        visit_all(visit, field_of(a), field_of(b));
    } else if constexpr (kCount == 3) {
        auto& [a, b, c] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c));
    } else if constexpr (kCount == 4) {
        auto& [a, b, c, d] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c), field_of(d));
    } else if constexpr (kCount == 5) {
        auto& [a, b, c, d, e] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c), field_of(d), field_of(e));
    } else if constexpr (kCount == 6) {
        auto& [a, b, c, d, e, f] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c), field_of(d), field_of(e),
                  field_of(f));
    } else if constexpr (kCount == 7) {
        auto& [a, b, c, d, e, f, g] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c), field_of(d), field_of(e),
                  field_of(f), field_of(g));
    } else if constexpr (kCount == 8) {
        auto& [a, b, c, d, e, f, g, h] = value;
        visit_all(visit, field_of(a), field_of(b), field_of(c), field_of(d), field_of(e),
                  field_of(f), field_of(g), field_of(h));
    }
}

/// True if nothing is known about the inside of a `Value`, or it is no tensor and holds none.
template <typename Value>
constexpr bool holds_no_tensor() {
    if constexpr (std::is_function_v<Value> || std::is_void_v<Value>) {
        return true;
    } else if constexpr (!requires { sizeof(Value); }) {
        return true;
    } else {
        return std::is_arithmetic_v<Value> || std::is_enum_v<Value> ||
               std::is_convertible_v<const Value&, std::string_view>;
    }
}

/// Adds every tensor of what a network's forward returns: a tensor, or any nest of optionals,
/// pointers, pairs, tuples, arrays, containers, maps (their values too) and structs without
/// constructors. Any other type counts as something without tensors; the compiler refuses a struct
/// without constructors whose fields cannot be read.
template <typename Output>
void collect_tensors(const Output& output, std::vector<torch::Tensor>& found) {
    if constexpr (std::is_convertible_v<const Output&, const torch::Tensor&>) {
        const torch::Tensor& tensor = output;
        if (tensor.defined()) {
            found.push_back(tensor);
        }
    } else if constexpr (holds_no_tensor<Output>()) {
        // Nothing to find.
    } else if constexpr (std::is_array_v<Output>) {
        for (const auto& part : output) {
            collect_tensors(part, found);
        }
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
        static_assert(has_visible_fields<Output>(),
                      "a struct in an output of a network has at most 8 fields, no base class and "
                      "no large array; nest structs for more");
        visit_fields(output, [&found](const auto& field) { collect_tensors(field, found); });
    }
}

}  // namespace ddprun::worker
