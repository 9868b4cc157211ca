// Reductions in every type that NCCL reduces. Numbers of 16 bits are added as floats and rounded
// after each addition; NCCL's own order of additions is another one.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/fake_gpu/machine/settings.hpp"
#include "tests/fake_gpu/nccl/operation.hpp"

namespace fake_gpu {

namespace {

/// A number as it is stored.
template <typename T>
struct Plain {
    using Stored = T;
    using Number = T;
    static T load(T stored) { return stored; }
    static T store(T number) { return number; }
};

struct Half {
    using Stored = std::uint16_t;
    using Number = float;
    static float load(std::uint16_t stored) {
        _Float16 half = 0;
        std::memcpy(&half, &stored, sizeof half);
        return static_cast<float>(half);
    }
    static std::uint16_t store(float number) {
        const auto half = static_cast<_Float16>(number);
        std::uint16_t stored = 0;
        std::memcpy(&stored, &half, sizeof stored);
        return stored;
    }
};

/// The upper half of a float, rounded to even.
struct Bfloat16 {
    using Stored = std::uint16_t;
    using Number = float;
    static constexpr int kShift = 16;
    static float load(std::uint16_t stored) {
        return std::bit_cast<float>(std::uint32_t{stored} << kShift);
    }
    static std::uint16_t store(float number) {
        constexpr std::uint16_t kNan = 0x7fc0;
        constexpr std::uint32_t kAlmostHalf = 0x7fff;
        const auto bits = std::bit_cast<std::uint32_t>(number);
        const std::uint32_t is_odd = (bits >> kShift) & 1;
        return std::isnan(number)
                   ? kNan
                   : static_cast<std::uint16_t>((bits + kAlmostHalf + is_odd) >> kShift);
    }
};

template <typename Function>
void with_type(ncclDataType_t type, Function function) {
    switch (type) {
        case ncclInt8:
            return function.template operator()<Plain<std::int8_t>>();
        case ncclUint8:
            return function.template operator()<Plain<std::uint8_t>>();
        case ncclInt32:
            return function.template operator()<Plain<std::int32_t>>();
        case ncclUint32:
            return function.template operator()<Plain<std::uint32_t>>();
        case ncclInt64:
            return function.template operator()<Plain<std::int64_t>>();
        case ncclUint64:
            return function.template operator()<Plain<std::uint64_t>>();
        case ncclFloat16:
            return function.template operator()<Half>();
        case ncclFloat32:
            return function.template operator()<Plain<float>>();
        case ncclFloat64:
            return function.template operator()<Plain<double>>();
        case ncclBfloat16:
            return function.template operator()<Bfloat16>();
        default:
            give_up("a reduction of NCCL's type " + std::to_string(type));
    }
}

template <typename Type>
typename Type::Number load(const char* numbers, std::size_t index) {
    typename Type::Stored stored{};
    std::memcpy(&stored, numbers + index * sizeof stored, sizeof stored);
    return Type::load(stored);
}

template <typename Type>
void store(char* numbers, std::size_t index, typename Type::Number number) {
    const typename Type::Stored stored = Type::store(number);
    std::memcpy(numbers + index * sizeof stored, &stored, sizeof stored);
}

template <typename Number>
Number combine(ncclRedOp_t reduction, Number one, Number other) {
    switch (reduction) {
        case ncclProd:
            return static_cast<Number>(one * other);
        case ncclMax:
            return std::max(one, other);
        case ncclMin:
            return std::min(one, other);
        default:
            return static_cast<Number>(one + other);
    }
}

/// Returns the factor of the sum: that of an average, or of ncclRedOpCreatePreMulSum().
double factor_of(const Operation& operation) {
    if (operation.reduction == ncclAvg) {
        return 1.0 / operation.communicator->size();
    }
    double factor = 1;
    if (operation.reduction >= ncclNumOps) {
        const Scalar scalar = operation.communicator->scalar_of(operation.reduction);
        with_type(scalar.type, [&]<typename Type>() {
            factor = static_cast<double>(load<Type>(scalar.bytes.data(), 0));
        });
    }
    return factor;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
        case ncclFloat8e4m3:
        case ncclFloat8e5m2:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        default:
            return 8;
    }
}

void reduce(const Operation& operation, const std::vector<const char*>& parts, char* to) {
    // Parts may lie where the result goes.
    std::vector<char> result(parts.front(), parts.front() + operation.bytes());
    const double factor = factor_of(operation);
    with_type(operation.type, [&]<typename Type>() {
        using Number = typename Type::Number;
        for (std::size_t i = 0; i < operation.count; ++i) {
            for (std::size_t part = 1; part < parts.size(); ++part) {
                store<Type>(result.data(), i,
                            combine<Number>(operation.reduction, load<Type>(result.data(), i),
                                            load<Type>(parts[part], i)));
            }
            if (factor != 1) {
                const auto sum = static_cast<double>(load<Type>(result.data(), i));
                store<Type>(result.data(), i, static_cast<Number>(sum * factor));
            }
        }
    });
    std::memcpy(to, result.data(), result.size());
}

}  // namespace fake_gpu
