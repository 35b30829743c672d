"""Packed sequences: batches of texts or series of unlike lengths, whose lengths lie on the CPU."""

import copy

import pytest
import torch
from torch.nn.utils import rnn

LENGTHS = torch.tensor([4, 6, 2])


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_model_trains_on_packed_sequences_as_on_the_cpu(cards, kind):
    torch.manual_seed(0)
    model = kind(4, 5, 2, batch_first=True, bidirectional=True).double()
    given = torch.randn(3, 6, 4, dtype=torch.float64)

    def trained(model, given):
        given.requires_grad_()
        packed = rnn.pack_padded_sequence(given, LENGTHS, batch_first=True, enforce_sorted=False)
        result, lengths = rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
        result.square().sum().backward()
        return [result, given.grad, *(one.grad for one in model.parameters())], lengths

    there, lengths = trained(copy.deepcopy(model).to("penstock"), given.clone().to("penstock"))
    here, _ = trained(model, given.clone())
    torch.testing.assert_close([one.cpu() for one in there], here)
    assert lengths.tolist() == LENGTHS.tolist()


def test_sequences_are_packed_and_unpacked_unchanged(cards):
    given = [torch.arange(3.0, device="penstock"), torch.arange(5.0, device="penstock")]
    unpacked = rnn.unpack_sequence(rnn.pack_sequence(given, enforce_sorted=False))
    assert [one.tolist() for one in unpacked] == [[0, 1, 2], [0, 1, 2, 3, 4]]
