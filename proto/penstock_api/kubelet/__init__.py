"""Messages that kubelets exchange with what runs beside them; generated: `make proto`."""
