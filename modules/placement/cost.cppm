export module tessera.placement:cost;

import tessera.base;
import tessera.mesh;

namespace tessera::cost_detail {

/// Changes with every set_link, so that plans made before are not found again.
std::uint64_t links_version();

}  // namespace tessera::cost_detail

export namespace tessera {

/// Costs of communication along one mesh axis for a rank.
struct Link {
  double latency = 10e-6;  // seconds to begin a collective
  double bandwidth = 5e9;  // bytes a second that a rank receives
  friend bool operator==(const Link&, const Link&) = default;
};

/// The link of a mesh axis: the default until set_link says otherwise. Every rank must set the
/// same: otherwise ranks would plan different collectives.
Link link_of(const DeviceMesh& mesh, int axis);
/// Error (input): a latency below 0 or a bandwidth that is not above 0.
void set_link(const DeviceMesh& mesh, int axis, Link link);

/// Seconds that a step without communication takes: a fixed part and a pass over its bytes.
double local_step_cost(std::int64_t bytes);

}  // namespace tessera
