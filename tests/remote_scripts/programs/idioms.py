"""What programs for CUDA write, as they write it: `python idioms.py` prints a line for each that does not hold.

One function an idiom, run where `cuda` is a lease. Each is what PyTorch does on a GPU of the machine itself.
"""

import copy
import io
import multiprocessing
import os
import pickle
import sys
import tempfile
import weakref

import torch
from torch import nn
from torch.utils import benchmark
from torch.utils.checkpoint import checkpoint

IDIOMS = {}


def idiom(function):
    IDIOMS[function.__name__] = function
    return function


@idiom
def a_number_is_a_device_before_anything_else():
    # The first of all: nothing has used the device before.
    assert torch.ones(2).to(0).is_cuda
    assert torch.ones(2).cuda(0).device.index == 0
    assert torch.ones(2, device=0).is_cuda
    assert nn.Linear(2, 2).cuda(0).weight.is_cuda
    assert nn.Linear(2, 2).to(0).weight.is_cuda


@idiom
def data_is_written_without_autograd_knowing():
    weight = torch.ones(3, device="cuda", requires_grad=True)
    version = weight._version
    loss = (weight * weight).sum()
    weight.data.add_(1)
    assert weight._version == version
    loss.backward()
    weight.data -= 0.5 * weight.grad
    assert weight.tolist() == [0, 0, 0]


@idiom
def data_is_set_while_a_graph_or_a_weak_reference_lives():
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    seen, loss = weakref.ref(weight), (weight * weight).sum()
    weight.data = torch.zeros(3, device="cuda")
    assert seen() is weight
    assert weight.sum().item() == 0
    del loss


@idiom
def a_model_moves_and_is_cast_after_its_first_use():
    model = nn.Linear(3, 3)
    kept = [model(torch.ones(1, 3)), weakref.ref(model.weight)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.to("cuda")
    kept.append(model(torch.ones(1, 3, device="cuda")))
    kept[-1].sum().backward()
    before = model.weight.sum().item()
    optimizer.step()
    assert model.weight.sum().item() != before
    model.zero_grad(set_to_none=True)
    assert model.half().weight.dtype == torch.float16
    assert model.cpu().weight.device.type == "cpu"


@idiom
def weights_are_loaded_after_the_model_was_compiled():
    model = nn.Linear(4, 4).to("cuda")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = torch.compile(model)
    compiled(torch.ones(2, 4, device="cuda")).sum().backward()
    with torch.no_grad():
        model.weight.add_(1)
    model.load_state_dict(saved)
    assert torch.equal(model.weight, saved["weight"])


@idiom
def a_compiled_function_makes_tensors_by_the_devices_name():
    here = torch.device("cuda", 0)
    torch._dynamo.config.suppress_errors = False

    @torch.compile(fullgraph=True)
    def run(x):
        return torch.arange(4, device=here) + x.to("cuda:0") + torch.zeros(4, device="cuda")

    assert run(torch.ones(4, device="cuda")).tolist() == [1, 2, 3, 4]


@idiom
def files_say_where_their_tensors_were():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("cuda")
    model[1].weight = model[0].weight
    for plain in (False, True):
        file = io.BytesIO()
        torch.save(model if plain else model.state_dict(), file)
        assert b"cuda:0" in file.getvalue()
        for location in (None, "cuda", "cuda:0", torch.device("cuda"), {"cuda:0": "cuda:0"}, lambda s, _: s.cuda(0)):
            file.seek(0)
            loaded = torch.load(file, map_location=location, weights_only=not plain)
            weights = loaded.state_dict() if plain else loaded
            assert all(each.is_cuda for each in weights.values()), location
            assert torch.equal(weights["0.bias"], model[0].bias)
        for location in ("cpu", lambda storage, _: storage):
            file.seek(0)
            loaded = torch.load(file, map_location=location, weights_only=not plain)
            weights = loaded.state_dict() if plain else loaded
            assert not any(each.is_cuda for each in weights.values()), location
    again = pickle.loads(pickle.dumps(model))
    assert again[0].weight.is_cuda
    assert again[0].weight is again[1].weight
    assert copy.deepcopy(model)[0].weight.is_cuda


@idiom
def views_of_one_storage_share_it_when_they_are_loaded():
    whole = torch.arange(6.0, device="cuda")
    file = io.BytesIO()
    torch.save([whole.cpu(), whole.cpu().view(2, 3)[1]], file)
    tensors = torch.arange(6.0)
    file = io.BytesIO()
    torch.save([tensors, tensors.view(2, 3)[1]], file)
    file.seek(0)
    one, other = torch.load(file, map_location="cuda")
    one.zero_()
    assert other.tolist() == [0, 0, 0]
    assert other.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
    assert other.data_ptr() == one.data_ptr() + 3 * 4


def _put(queue):
    queue.put(torch.ones(2, device="cuda"))


@idiom
def tensors_come_through_a_queue_to_the_device():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_put, args=(queue,))
    process.start()
    assert queue.get(timeout=120).is_cuda
    process.join()


@idiom
def safetensors_are_written_of_tied_weights():
    from safetensors.torch import load_file, save_model

    model = nn.Module()
    model.a = nn.Embedding(5, 3)
    model.b = nn.Linear(3, 5, bias=False)
    model.b.weight = model.a.weight
    model.to("cuda")
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, f"{folder}/model.safetensors")
        assert all(each.is_cuda for each in load_file(f"{folder}/model.safetensors", device="cuda").values())


@idiom
def gradients_are_checked():
    weight = torch.tensor([0.3, 0.5], dtype=torch.double, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, (weight,))


@idiom
def sound_is_taken_apart_and_put_together():
    sound = torch.sin(torch.arange(256.0)).to("cuda")
    window = torch.hann_window(64, device="cuda")
    parts = torch.stft(sound, 64, window=window, return_complex=True)
    assert torch.allclose(torch.istft(parts, 64, window=window), sound, atol=1e-5)
    assert torch.hamming_window(8, device="cuda").sum().item() > 4
    assert torch.kaiser_window(8, device="cuda").is_cuda


@idiom
def one_device_in_parallel():
    model = nn.DataParallel(nn.Linear(6, 2).to("cuda"))
    model(torch.ones(3, 6, device="cuda")).sum().backward()
    assert model.module.weight.grad.is_cuda


@idiom
def one_rank_over_gloo():
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as rendezvous:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous.name}", rank=0, world_size=1)
        given = torch.ones(2, device="cuda")
        dist.all_reduce(given)
        assert given.tolist() == [1, 1]
        gathered = [torch.zeros(2, device="cuda")]
        dist.all_gather(gathered, given)
        assert gathered[0].tolist() == [1, 1]
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).to("cuda"))
        model(torch.ones(2, 3, device="cuda")).sum().backward()
        assert model.module.weight.grad.is_cuda
        dist.destroy_process_group()


@idiom
def pinned_memory_is_asked_for():
    assert torch.empty(3, pin_memory=True).shape == (3,)
    weight = torch.ones(3, device="cuda", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = weight.exp().sum()
    loss.backward()


@idiom
def a_default_device_is_where_tensors_are_made():
    makers = (
        lambda: torch.zeros(2),
        lambda: torch.ones(2),
        lambda: torch.empty(2),
        lambda: torch.full((2,), 1.0),
        lambda: torch.rand(2),
        lambda: torch.randn(2),
        lambda: torch.tensor([1.0]),
        lambda: torch.arange(2),
        lambda: nn.Linear(2, 2).weight,
    )
    with torch.device("cuda"):
        assert all(make().is_cuda for make in makers)
    torch.set_default_device("cuda")
    try:
        assert all(make().is_cuda for make in makers)
    finally:
        torch.set_default_device(None)
    assert not any(make().is_cuda for make in makers)


@idiom
def streams_and_the_accelerator():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = torch.ones(3, device="cuda") + 1
    made.record_stream(torch.cuda.current_stream())
    torch.accelerator.synchronize()
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == 1
    benchmark.Timer("x + 1", globals={"x": made}).timeit(3)
    parameter = torch.ones(3, device="cuda", requires_grad=True)
    parameter.sum().backward()
    torch.optim.AdamW([parameter], lr=torch.tensor(0.01, device="cuda"), capturable=True).step()


@idiom
def names_are_those_of_cuda():
    assert torch.ones(2, device="cuda").type() == "torch.cuda.FloatTensor"
    assert torch.ones(2, device="cuda").type("torch.cuda.HalfTensor").dtype == torch.float16
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    assert torch.cuda.get_device_properties(0).uuid
    for wrong in (
        lambda: torch.ones(2, device="cuda") + torch.ones(2),
        lambda: torch.autograd.grad(torch.ones((), device="cuda"), torch.ones((), device="cuda")),
    ):
        try:
            wrong()
        except RuntimeError as error:
            assert "aliquot" not in str(error), error
        else:
            raise AssertionError("nothing was raised")
    assert torch.tensor([torch.ones((), device="cuda"), 2.0]).sum().item() == 3


@idiom
def what_is_refused_takes_nothing_else_with_it():
    numbers = torch.tensor([1, 1, 2], device="cuda")
    for _ in range(3):
        try:
            torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (2,)).cuda().to_dense()
            torch.cuda.synchronize()
        except RuntimeError as error:
            assert "not served" in str(error), error
        assert torch.unique(numbers, return_counts=True)[1].tolist() == [2, 1]
        assert torch.nonzero(numbers - 1).tolist() == [[2]]
    table = torch.ones(3, 2, device="cuda")
    assert nn.functional.embedding_bag(numbers[None], table, mode="sum").sum().item() == 6
    torch.fake_quantize_per_tensor_affine(table, 0.1, 0, -128, 127).sum().item()


@idiom
def errors_come_where_they_are_made():
    kept = []
    try:
        for _ in range(200):
            kept.append(torch.empty(32 << 20, device="cuda"))
    except torch.OutOfMemoryError:
        assert 30 <= len(kept) <= 32, len(kept)  # something else lives, too
    else:
        raise AssertionError("4 GiB held 25")
    kept.clear()
    torch.empty(32 << 20, device="cuda")
    torch._assert_async(torch.tensor(True, device="cuda"))
    try:
        print(nn.functional.one_hot(torch.tensor([7], device="cuda"), 3).tolist())
    except RuntimeError as error:
        assert "out of bounds" in str(error), error
    else:
        raise AssertionError("there is no class 7 of 3")


@idiom
def dropout_is_the_same_again_where_a_checkpoint_computes_again():
    torch.ones(1, device="cuda")
    x = torch.ones(64, device="cuda", requires_grad=True)

    def gradient(run):
        torch.manual_seed(3)
        return torch.autograd.grad(run(lambda v: nn.functional.dropout(v * 2)).sum(), x)[0]

    plain = gradient(lambda block: block(x))
    assert torch.equal(gradient(lambda block: checkpoint(block, x, use_reentrant=False)), plain)


@idiom
def shapes_change_in_place_under_vmap():
    rows = torch.arange(6.0, device="cuda").view(2, 3)
    assert torch.func.vmap(lambda row: row.unsqueeze(0).clone().squeeze_(0) + 1)(rows).shape == (2, 3)
    weight, bias = torch.ones(3, 3, device="cuda"), torch.ones(3, device="cuda")
    assert torch.func.jacfwd(lambda row: nn.functional.linear(row, weight, bias))(rows[0]).shape == (3, 3)


@idiom
def weights_are_detached_in_inference_mode():
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    with torch.inference_mode():
        assert weight.detach().clone().to(weight.device).sum().item() == 3


@idiom
def norms_are_of_half_precision():
    for dtype in (torch.bfloat16, torch.float16):
        layer = nn.LayerNorm(8).cuda().to(dtype)
        x = torch.randn(2, 8, device="cuda", dtype=dtype, requires_grad=True)
        layer(x).float().pow(2).sum().backward()
        assert x.grad.isfinite().all()


@idiom
def one_image_alone_has_its_channels_last():
    x = torch.randn(1, 16, 8, device="cuda").mT.reshape(1, 8, 4, 4).to(memory_format=torch.channels_last)
    torch.testing.assert_close(nn.GroupNorm(4, 8).cuda()(nn.Conv2d(8, 8, 1).cuda()(x)).mean().cpu(), torch.zeros(()))


@idiom
def data_parallel_takes_what_is_on_the_cpu():
    model = nn.DataParallel(nn.Linear(3, 3)).cuda()
    assert model(torch.ones(2, 3)).is_cuda


@idiom
def padding_is_masked_in_an_encoder():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).cuda().eval()
    mask = torch.tensor([[False, False, True], [False, False, False]], device="cuda")
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 8, device="cuda"), src_key_padding_mask=mask).shape == (2, 3, 8)


@idiom
def operators_of_the_program_run_here():
    @torch.library.custom_op("idioms::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(lambda x: torch.empty_like(x))
    assert doubled(torch.ones(3, device="cuda")).sum().item() == 6


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name, run in IDIOMS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            run()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - each is told, and the next is tried
            print(f"{name}: {type(error).__name__}: {error}"[:400], flush=True)
