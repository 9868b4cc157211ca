#pragma once

#include <string>

#include "rendezvous/core/coordinator.hpp"

/// Orders of operators. An order that is taken is published as an event `operator` with its author,
/// is durable before it is answered or any effect of it is told, and may be given twice: the second
/// time it changes nothing, or sets the time anew. An order that is not taken changes nothing.
namespace ddprun::rdzv {

struct Step;

/// Takes the order, or answers why not. The code that decides the same without operators decides
/// the order's effect: leaving (membership), stopping, forming, quarantine.
void take_order(Step& step, const OrderGiven& given);
/// Nothing is done.
void refuse_order(Effects& out, const OrderGiven& given, OrderFault fault, std::string text);

}  // namespace ddprun::rdzv
