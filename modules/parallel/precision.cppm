export module tessera.parallel:precision;

import tessera.base;
import tessera.nn;

export namespace tessera::parallel {

/// Mixed precision: a module computes in a narrow type with parameters that are stored, updated and
/// saved in their own.
struct Precision {
  /// What the parameters are stored in, with their gradients and the optimizer's state: bf16 or
  /// f32. There is no other copy of them. None: what they were made in, f32 unless a model says
  /// otherwise. Packed weights and parameters of integers stay what they are.
  std::optional<DType> stored = std::nullopt;
  /// What the parameters are cast to when the module computes: bf16, f16, or their own type, which
  /// ends an earlier call's. None: as before, at first their own type.
  std::optional<DType> parameters = std::nullopt;
  /// Whether the module's floating inputs are cast to the same type.
  bool cast_inputs = true;
  /// What the module's floating outputs are cast to; none: they are not cast.
  std::optional<DType> outputs = std::nullopt;
};

/// In what form a parameter computes (nn::Parameter::computed); attached to it.
struct ComputedForm {
  std::optional<DType> dtype = std::nullopt;  // none: the value's
  /// The style that keeps the parameter in memory of its own and provides the form; empty: none.
  std::string style = {};
};

/// Sets the precision of a module and of all below it; a later call for a module inside replaces
/// it there. Call it before parameters have memory; with or without a plan. Unless a style
/// provides what the parameters compute with, each gets a copy in the narrow type, which is made
/// again after every write; its gradient is cast to the parameter's type when backward has
/// completed it, and summed over ranks in that type.
/// Errors (input): a type that is not a narrower floating one; f16 to store parameters in, whose
/// range updates leave; a parameter that has memory.
void set_precision(nn::Module& module, const Precision& precision);
/// The same for these parameters, of the module or of modules inside, instead of all.
void set_precision(nn::Module& module, const Precision& precision,
                   std::span<const nn::ParameterPointer> parameters);

}  // namespace tessera::parallel
