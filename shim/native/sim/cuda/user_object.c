/* User objects: objects of the program that graphs keep alive. */
#include <stdlib.h>

#include "sim/cuda/graph.h"

struct sim_user_object {
  void *pointer;
  CUhostFn destroy;
  unsigned references;
};

static CUresult object_of(CUuserObject handle, struct sim_user_object **object) {
  if (!sim_handle_is(handle, SIM_OTHER)) return CUDA_ERROR_INVALID_VALUE;
  *object = (struct sim_user_object *)handle;
  return CUDA_SUCCESS;
}

static void release(struct sim_user_object *object, unsigned count) {
  object->references = object->references > count ? object->references - count : 0;
  if (object->references) return;
  sim_handle_remove(object);
  if (object->destroy) SIM_CALL_BACK(object->destroy(object->pointer));
  free(object);
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy,
                                    unsigned int references, unsigned int flags) {
  ENTER("cuUserObjectCreate");
  REQUIRE(out && destroy && references && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
          CUDA_ERROR_INVALID_VALUE);
  struct sim_user_object *object = malloc(sizeof *object);
  REQUIRE(object, CUDA_ERROR_OUT_OF_MEMORY);
  *object = (struct sim_user_object){pointer, destroy, references};
  sim_handle_add(object, SIM_OTHER);
  *out = (CUuserObject)object;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned int count) {
  ENTER("cuUserObjectRetain");
  struct sim_user_object *object;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(object_of(handle, &object));
  object->references += count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned int count) {
  ENTER("cuUserObjectRelease");
  struct sim_user_object *object;
  REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
  TRY(object_of(handle, &object));
  release(object, count);
  return CUDA_SUCCESS;
}

static bool keep(sim_graph *graph, struct sim_user_object *object, unsigned count) {
  sim_kept_object *kept = malloc(sizeof *kept);
  if (!kept) return false;
  *kept = (sim_kept_object){object, count, graph->objects};
  graph->objects = kept;
  return true;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph handle, CUuserObject object_handle,
                                         unsigned int count, unsigned int flags) {
  ENTER("cuGraphRetainUserObject");
  sim_graph *graph;
  struct sim_user_object *object;
  REQUIRE(count && !(flags & ~1u), CUDA_ERROR_INVALID_VALUE);
  TRY(sim_graph_of(handle, &graph));
  TRY(object_of(object_handle, &object));
  REQUIRE(keep(graph, object, count), CUDA_ERROR_OUT_OF_MEMORY);
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph handle, CUuserObject object_handle,
                                          unsigned int count) {
  ENTER("cuGraphReleaseUserObject");
  sim_graph *graph;
  struct sim_user_object *object;
  TRY(sim_graph_of(handle, &graph));
  TRY(object_of(object_handle, &object));
  for (sim_kept_object *k = graph->objects; k; k = k->next) {
    if (k->object != object || k->count < count) continue;
    k->count -= count;
    release(object, count);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void sim_objects_retain(sim_graph *graph, const sim_graph *from) {
  for (const sim_kept_object *k = from->objects; k; k = k->next)
    if (k->count && keep(graph, k->object, k->count)) k->object->references += k->count;
}

void sim_objects_drop(sim_graph *graph) {
  while (graph->objects) {
    sim_kept_object *k = graph->objects;
    graph->objects = k->next;
    if (k->count) release(k->object, k->count);
    free(k);
  }
}
