export module tessera.tensor:overlap;

import tessera.base;
import :value;
import :op;

export namespace tessera {

// By addresses, shapes and strides alone, of a distributed tensor those of its local part. Exact,
// but strides that are too irregular to decide on in reasonable time are reported as shared memory.

/// Whether two elements of `x` are the same memory, as in an expanded tensor or in sliding windows.
bool repeats_elements(const Tensor& x);
/// Whether `a` and `b` have a byte of memory in common. Two columns of one matrix have none.
bool shares_memory(const Tensor& a, const Tensor& b);

/// Checks the operands that an in-place operator writes (operand 0 and those marked `!`).
/// Errors, which name the operands: a written operand repeats elements, or has memory in common
/// with another operand. An operand that is only read may be exactly the written view; in lists,
/// only at the same place.
void check_written_operands(const Call& call);

}  // namespace tessera
