export module tessera.mesh:scope;

import tessera.base;
import :device_mesh;

export namespace tessera {

/// The calling thread's global rank. Whatever starts ranks sets it (collective::launch, join_launch
/// and run_threads do). A thread that has none has the main thread's; that is 0 until it is set.
int current_rank();
void set_current_rank(int rank);

/// Makes a mesh the current one of this thread until the end of the scope; scopes nest.
class MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  std::size_t depth_;
};

/// The mesh of the innermost scope of this thread; no mesh (false) outside of all scopes.
DeviceMesh current_mesh();
/// The mesh of the innermost scope; an Error that names `what` outside of all scopes.
DeviceMesh require_mesh(const char* what);

}  // namespace tessera
