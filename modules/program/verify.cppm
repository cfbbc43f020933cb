export module tessera.program:verify;

import tessera.base;
import :analysis;
import :instructions;
import :values;

export namespace tessera::graph {

/// Errors that name section and instruction: a tensor is used before it is defined or is defined
/// twice; a result has another shape or type than its operator gives it; an alias goes beyond its
/// memory; memory is used after it was released, or is released or restored twice; what an issued
/// collective writes is used, or what it reads is written, before the wait; nothing waits for it;
/// an input is changed before a guard; what an optimizer updates is not a parameter; a section is
/// there twice, or before one that it follows.
void verify(const Program& program);

/// Errors: the programs do not leave the same bits in inputs and outputs after each section,
/// whatever the inputs are, or do not communicate in the same order. Both must pass verify().
/// Independent of how `after` was made: both are executed on descriptions of values, in which a
/// value is described by the calls that lead to it. So programs that are equal for another reason
/// (x + y and y + x) are refused.
void verify_same(const Program& before, const Program& after);

/// The part of verify() about what inputs, outputs and sections are for.
void check_roles(const Program& program);

/// verify(), and what is known of the program then.
std::unique_ptr<Analysis> verified(const Program& program);
/// verify_same() of programs whose values are known. They share their ValueNames.
void compare(const Program& before, const Values& left, const Program& after, const Values& right);

}  // namespace tessera::graph
