"""harmofl as an ordinary Flower app, for a SuperLink and SuperNodes that others run: only Flower's public interface."""
