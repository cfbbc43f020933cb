// What makes a Tensor distributed: conversions, propagation of layouts through operators, accounts
// of communication.
export module tessera.dtensor;

export import :convert;    // distribute, from_local, to_local, redistribute, full_tensor, factories
export import :report;     // what was communicated; scopes that allow implicit redistribution
export import :propagate;  // how an operator's layouts follow from its operands'
